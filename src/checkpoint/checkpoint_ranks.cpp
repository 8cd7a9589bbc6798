#include "checkpoint/checkpoint_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace stepforge {

namespace {

constexpr std::chrono::milliseconds kRound(200);
/// Longest report of one rank. Reports travel as long as the longest.
constexpr uint64_t kMostBytes = uint64_t{1} << 24;

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

template <typename T>
std::vector<T> gather_values(Communicator& group, const T& own) {
  std::vector<T> all(static_cast<size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
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

  const std::vector<std::string> texts = gather((own.succeeded ? "+" : "-") + own.text);
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
  const std::vector<uint8_t> all = gather_values(*group_, static_cast<uint8_t>(finished));
  return std::find(all.begin(), all.end(), uint8_t{0}) == all.end();
}

std::vector<std::string> CheckpointRanks::gather(const std::string& text) const {
  const std::vector<uint64_t> sizes = gather_values(*group_, static_cast<uint64_t>(text.size()));
  const uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (longest > kMostBytes) throw Error(format("a rank reports {} bytes about a checkpoint", longest));
  std::string padded = text;
  padded.resize(longest);
  std::string all(longest * sizes.size(), '\0');
  group_->all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) texts.push_back(all.substr(rank * longest, sizes[rank]));
  return texts;
}

}  // namespace stepforge
