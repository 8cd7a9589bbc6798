// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/rank0_first.h"

#include <chrono>
#include <mutex>
#include <span>

namespace stepforge {

namespace {

enum class Status : uint8_t { working, done };

/// Returns rank 0's status on every rank.
Status broadcast_status(Communicator& all, Status status) {
  all.broadcast(std::as_writable_bytes(std::span(&status, 1)), 0);
  return status;
}

}  // namespace

void rank0_first(Communicator* all, const std::function<void(const ReportProgress& report)>& action) {
  const ReportProgress alone = [] {};
  if (all == nullptr) return action(alone);
  if (all->rank() != 0) {
    while (broadcast_status(*all, Status::working) != Status::done) {
    }
    return action(alone);
  }
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kReportInterval{100};
  std::mutex mutex;
  Clock::time_point last = Clock::now();
  action([&] {
    const std::lock_guard lock(mutex);
    if (Clock::now() - last < kReportInterval) return;
    broadcast_status(*all, Status::working);
    last = Clock::now();
  });
  broadcast_status(*all, Status::done);
}

}  // namespace stepforge
