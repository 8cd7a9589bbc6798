// SPDX-License-Identifier: Apache-2.0
// The reason why a group or a world failed, in memory that all its ranks share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// Keeps the first reason. Any thread or process may write and read it; it contains no pointers.
class FailureNote {
 public:
  bool is_set() const { return state_.load(std::memory_order_acquire) != empty; }
  /// Texts are truncated to 2,048 bytes.
  void set(std::string_view text);
  /// nullopt if nothing has failed.
  std::optional<std::string> text() const;

 private:
  enum State : uint32_t { empty, being_written, written };
  std::atomic<uint32_t> state_{empty};
  std::atomic<uint32_t> length_{0};
  std::array<char, 2048> text_{};
};

/// If the note is set, throws PeerError with its text and with `where`, the call in which the rank stopped.
void throw_if_set(const FailureNote& note, int global_rank, const std::string& where);

}  // namespace stepforge
