#include "stepforge/checkpoint/checkpoint_ranks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <future>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"

namespace stepforge {

namespace {

constexpr std::chrono::milliseconds kRound(200);

struct Outcome {
  bool succeeded = false;
  std::string text;  ///< what the action returned, or why it failed
};

Outcome outcome_of(const std::function<std::string()>& action) {
  try {
    return {true, action()};
  } catch (const std::exception& failure) {
    return {false, failure.what()};
  }
}

/// Runs `action`, which must live until the future is done, beside the caller; without a thread to spare,
/// here.
std::future<Outcome> start(const std::function<std::string()>& action) {
  try {
    return std::async(std::launch::async, outcome_of, std::cref(action));
  } catch (const std::system_error&) {
    std::promise<Outcome> done;
    done.set_value(outcome_of(action));
    return done.get_future();
  }
}

}  // namespace

CheckpointRanks::CheckpointRanks(std::unique_ptr<Communicator> group, double limit_seconds)
    : group_(std::move(group)), limit_seconds_(limit_seconds) {}

std::vector<std::string> CheckpointRanks::run(const std::function<std::string()>& action) const {
  if (group_ == nullptr) return {action()};
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(limit_seconds_);
  std::future<Outcome> running = start(action);
  bool finished = false;
  bool late = false;
  do {
    finished = finished || running.wait_for(kRound) == std::future_status::ready;
    late = !finished && std::chrono::steady_clock::now() - begin > limit;
  } while (!nobody_works(finished || late));
  Outcome own = late ? Outcome{false, format("not done within {} s", limit_seconds_)} : running.get();

  const std::vector<std::string> texts = gather_texts(*group_, (own.succeeded ? "+" : "-") + own.text);
  std::vector<std::string> failures;
  std::vector<std::string> results;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    results.push_back(texts[rank].substr(1));
    if (texts[rank][0] != '+') failures.push_back(format("rank {}: {}", rank, results.back()));
  }
  if (!failures.empty()) throw Error(join(failures, "; "));
  return results;
}

bool CheckpointRanks::nobody_works(bool finished) const {
  const std::vector<uint8_t> all = gather_values(*group_, std::array{static_cast<uint8_t>(finished)});
  return std::find(all.begin(), all.end(), uint8_t{0}) == all.end();
}

}  // namespace stepforge
