// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/rank0_first.h"

#include <chrono>
#include <mutex>
#include <span>

namespace stepforge {

namespace {

enum class Sign : uint8_t { working, done };

/// Rank 0's sign, on every rank.
Sign share(Communicator& all, Sign sign) {
  all.broadcast(std::as_writable_bytes(std::span(&sign, 1)), 0);
  return sign;
}

}  // namespace

void rank0_first(Communicator* all, const std::function<void(const ReportProgress& report)>& action) {
  const ReportProgress alone = [] {};
  if (all == nullptr) return action(alone);
  if (all->rank() != 0) {
    while (share(*all, Sign::working) != Sign::done) {
    }
    return action(alone);
  }
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds pause{100};
  std::mutex mutex;
  Clock::time_point last = Clock::now();
  action([&] {
    const std::lock_guard lock(mutex);
    if (Clock::now() - last < pause) return;
    share(*all, Sign::working);
    last = Clock::now();
  });
  share(*all, Sign::done);
}

}  // namespace stepforge
