// SPDX-License-Identifier: Apache-2.0
// The reason why a group or a world ended, in memory that all its ranks share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// The first reason stays. Any thread or process may write and read it; it contains no pointers.
class FailureNote {
 public:
  bool is_set() const { return state_.load(std::memory_order_acquire) != empty; }
  /// Texts of more than 2,048 bytes are cut.
  void set(std::string_view text);
  /// nullopt if nothing has failed.
  std::optional<std::string> text() const;

 private:
  enum State : uint32_t { empty, being_written, written };
  std::atomic<uint32_t> state_{empty};
  std::atomic<uint32_t> length_{0};
  std::array<char, 2048> text_{};
};

/// Throws PeerError with the reason and with `where` the rank was, if the note is set.
void throw_if_set(const FailureNote& note, int global_rank, const std::string& where);

}  // namespace stepforge
