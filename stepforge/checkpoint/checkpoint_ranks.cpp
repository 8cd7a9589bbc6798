// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/checkpoint_ranks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"

namespace stepforge {

namespace {

constexpr std::chrono::milliseconds kRound(200);

struct Outcome {
  std::string text;  ///< the action's result, or its error message
  std::exception_ptr failure;
};

Outcome outcome_of(std::function<std::string()> action) {
  try {
    return {action(), nullptr};
  } catch (const std::exception& failure) {
    return {failure.what(), std::current_exception()};
  }
}

/// Runs `action` on a detached thread, or here if no thread can be started. The thread owns everything that
/// it uses: if it hangs on a dead disk, no destructor waits for it.
std::future<Outcome> start(std::function<std::string()> action) {
  // The action and what it owns are destroyed before the future is ready.
  auto task = std::make_shared<std::packaged_task<Outcome()>>(
      [action = std::move(action)]() mutable { return outcome_of(std::exchange(action, nullptr)); });
  std::future<Outcome> outcome = task->get_future();
  try {
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();
  }
  return outcome;
}

}  // namespace

CheckpointRanks::CheckpointRanks(std::unique_ptr<Communicator> group, double limit_seconds)
    : group_(std::move(group)), limit_seconds_(limit_seconds) {}

std::vector<std::string> CheckpointRanks::run(std::function<std::string()> action) const {
  if (group_ == nullptr && limit_seconds_ <= 0) return {action()};
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(limit_seconds_);
  std::future<Outcome> running = start(std::move(action));
  bool finished = false;
  bool late = false;
  do {
    finished = finished || running.wait_for(kRound) == std::future_status::ready;
    late = !finished && std::chrono::steady_clock::now() - begin > limit;
  } while (!all_have_ended(finished || late));
  Outcome own;
  if (late) {
    own.text = format("not done within {} s", limit_seconds_);
    own.failure = std::make_exception_ptr(Error(own.text));
  } else {
    own = running.get();
  }
  if (group_ == nullptr) {
    if (own.failure != nullptr) std::rethrow_exception(own.failure);
    return {own.text};
  }
  const std::vector<std::string> texts =
      gather_texts(*group_, (own.failure == nullptr ? "+" : "-") + own.text);
  std::vector<std::string> failures;
  std::vector<std::string> results;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    results.push_back(texts[rank].substr(1));
    if (texts[rank][0] != '+') failures.push_back(format("rank {}: {}", rank, results.back()));
  }
  if (!failures.empty()) throw Error(join(failures, "; "));
  return results;
}

bool CheckpointRanks::all_have_ended(bool ended) const {
  if (group_ == nullptr) return ended;
  const std::vector<uint8_t> all = gather_values(*group_, std::array{static_cast<uint8_t>(ended)});
  return std::find(all.begin(), all.end(), uint8_t{0}) == all.end();
}

}  // namespace stepforge
