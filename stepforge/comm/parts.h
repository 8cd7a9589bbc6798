// SPDX-License-Identifier: Apache-2.0
// The parts of an all-to-all: one buffer with a slice for each member.
#pragma once

#include <cstddef>
#include <span>

namespace stepforge {

/// Slices of `bytes` one after another, in rank order. Both spans must stay alive.
template <typename Byte>
class Parts {
 public:
  /// The sizes must add up to the buffer; see check_sizes in group_communicator.h.
  Parts(std::span<Byte> bytes, std::span<const std::size_t> sizes) : bytes_(bytes), sizes_(sizes) {}

  std::size_t size_of(int member) const { return sizes_[static_cast<std::size_t>(member)]; }
  std::span<const std::size_t> sizes() const { return sizes_; }

  /// A member's slice.
  std::span<Byte> of(int member) const {
    std::size_t begin = 0;
    for (int i = 0; i < member; ++i) begin += size_of(i);
    return bytes_.subspan(begin, size_of(member));
  }

 private:
  std::span<Byte> bytes_;
  std::span<const std::size_t> sizes_;
};

}  // namespace stepforge
