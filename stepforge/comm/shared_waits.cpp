// SPDX-License-Identifier: Apache-2.0
// How a rank of a SharedCommunicator waits, and why it stops.
#include <algorithm>
#include <chrono>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/shared_communicator.h"

namespace stepforge {

namespace {

/// Reads of a counter before sleeping: a few microseconds, because there may be more ranks than cores.
constexpr int kSpins = 100;
/// How often a sleeping rank checks for failures, in seconds.
constexpr double kPollSeconds = 0.1;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void SharedCommunicator::wait_for_all(Progress progress, uint64_t target) {
  for (int member = 0; member < size_; ++member) {
    wait_for(arena_.slot(member).*progress, target, member, train_seconds_, progress);
  }
}

void SharedCommunicator::wait_for(Counter& counter, uint64_t target, int member, double seconds,
                                  Progress progress) {
  for (int i = 0; i < kSpins; ++i) {
    if (counter.load() >= target) return;
    relax();
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (bool has_slept = false;; has_slept = true) {
    const uint64_t seen = counter.load();
    if (seen >= target) return;
    check_failures();
    if (has_slept) check_member(counter, target, member);
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    if (waited >= seconds) {
      std::vector<int> missing;
      for (int i = 0; i < size_; ++i) {
        const bool is_late = progress == nullptr ? i == member : (arena_.slot(i).*progress).load() < target;
        if (is_late) missing.push_back(i);
      }
      fail_at_deadline(missing, seconds);
    }
    counter.sleep_while(seen, std::min(kPollSeconds, seconds - waited));
  }
}

void SharedCommunicator::check_failures() {
  for (const FailureNote* note : {&std::as_const(arena_.header().failure), &world_.failure()}) {
    if (note->is_set()) throw_if_set(*note, world_rank(), here_text());
  }
}

void SharedCommunicator::check_member(const Counter& counter, uint64_t target, int member) {
  const RankSlot& slot = arena_.slot(member);
  const bool has_left = slot.has_left.load(std::memory_order_acquire) != 0;
  if (!has_left && world_.is_alive(world_rank(member))) return;
  if (counter.load() >= target) return;  // it left after this progress
  const std::string state =
      has_left ? "has left the group" : format("(process {}) is gone", slot.process.load());
  fail_at_loss(format("rank {} {}", world_rank(member), state));
}

std::string SharedCommunicator::end_group(const std::string& reason) {
  arena_.fail(reason);
  return *arena_.header().failure.text();
}

std::string SharedCommunicator::last_call_text(int member) const {
  const RankSlot& slot = arena_.slot(member);
  if (slot.arrived.load() == 0) return "not connected";
  const uint64_t calls = slot.calls.load(std::memory_order_acquire);
  return call_text(calls, slot.recorded(calls));
}

}  // namespace stepforge
