// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/failure_note.h"

#include <algorithm>

#include <unistd.h>

#include "stepforge/base/format.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

void FailureNote::set(std::string_view text) {
  uint32_t expected = empty;
  if (!state_.compare_exchange_strong(expected, being_written)) return;
  const std::size_t length = std::min(text.size(), text_.size());
  std::copy_n(text.begin(), length, text_.begin());
  length_.store(static_cast<uint32_t>(length), std::memory_order_relaxed);
  state_.store(written, std::memory_order_release);
}

std::optional<std::string> FailureNote::text() const {
  if (!is_set()) return std::nullopt;
  // Writing takes microseconds; if the writer dies meanwhile, the note stays without a text.
  for (int i = 0; i < 100 && state_.load(std::memory_order_acquire) != written; ++i) usleep(1000);
  if (state_.load(std::memory_order_acquire) != written) return "a rank ended while it reported a failure";
  return std::string(text_.data(),
                     std::min<std::size_t>(length_.load(std::memory_order_relaxed), text_.size()));
}

void throw_if_set(const FailureNote& note, int global_rank, const std::string& where) {
  if (const auto text = note.text()) {
    throw PeerError(format("{} (rank {} stopped in {})", *text, global_rank, where));
  }
}

}  // namespace stepforge
