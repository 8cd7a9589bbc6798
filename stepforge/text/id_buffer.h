// SPDX-License-Identifier: Apache-2.0
// Collects ids on their way to a vector, to which appending few at a time takes longer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace stepforge {

class IdBuffer {
 public:
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): only the first `count_` are read
  explicit IdBuffer(std::vector<int32_t>& target) : target_(target) {}

  /// Appends the first `count` of `ids`. All of them are copied, which takes no loop.
  template <size_t kMost>
  void append(const std::array<int32_t, kMost>& ids, size_t count) {
    static_assert(kMost <= kCapacity);
    if (count_ > kCapacity - kMost) flush();
    std::memcpy(ids_.data() + count_, ids.data(), sizeof(ids));
    count_ += count;
  }

  /// The target with all ids so far; others may be appended to it.
  std::vector<int32_t>& flush() {
    target_.insert(target_.end(), ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count_));
    count_ = 0;
    return target_;
  }

 private:
  static constexpr size_t kCapacity = 1024;
  std::vector<int32_t>& target_;
  size_t count_ = 0;
  std::array<int32_t, kCapacity> ids_;
};

}  // namespace stepforge
