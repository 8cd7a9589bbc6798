// SPDX-License-Identifier: Apache-2.0
// How a rank of a SharedCommunicator waits, and why it stops.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/comm/shared_communicator.h"

namespace stepforge {

namespace {

/// Reads of a counter before sleeping: a few microseconds, because there may be more ranks than cores.
constexpr int kSpins = 100;
/// How often a sleeping rank checks for failures, in seconds.
constexpr double kPollSeconds = 0.1;

using Clock = std::chrono::steady_clock;

int64_t milliseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

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
  const Clock::time_point start = Clock::now();
  double deadline = seconds;
  for (bool has_slept = false;; has_slept = true) {
    const uint64_t seen = counter.load();
    if (seen >= target) return;
    check_failures();
    if (has_slept) check_member(counter, target, member);
    const Clock::time_point now = Clock::now();
    world_.last_look(world_rank()).store(milliseconds(now), std::memory_order_relaxed);
    const double waited = std::chrono::duration<double>(now - start).count();
    if (waited >= deadline) {
      std::vector<int> missing;
      for (int i = 0; i < size_; ++i) {
        const bool is_late = progress == nullptr ? i == member : (arena_.slot(i).*progress).load() < target;
        if (is_late) missing.push_back(i);
      }
      // They may all wait for another rank: its neighbours report that one.
      if (deadline > seconds || !all_wait(missing, seconds)) fail_at_deadline(missing, deadline);
      deadline = 2 * seconds;
    }
    counter.sleep_while(seen, std::min(kPollSeconds, deadline - waited));
  }
}

bool SharedCommunicator::all_wait(const std::vector<int>& members, double seconds) const {
  const int64_t now = milliseconds(Clock::now());
  return std::ranges::all_of(members, [&](int member) {
    return now - world_.last_look(world_rank(member)).load() < static_cast<int64_t>(seconds * 1000 / 2);
  });
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
  check_failures();                      // or after it had said why
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
