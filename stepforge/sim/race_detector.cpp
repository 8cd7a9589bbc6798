// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/race_detector.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::sim {

void Clock::set(int stream, uint32_t position) {
  const auto index = static_cast<size_t>(stream);
  if (finished_.size() <= index) finished_.resize(index + 1);
  finished_[index] = position;
}

void Clock::join(const Clock& other) {
  if (finished_.size() < other.finished_.size()) finished_.resize(other.finished_.size());
  for (size_t i = 0; i < other.finished_.size(); ++i)
    finished_[i] = std::max(finished_[i], other.finished_[i]);
}

RaceDetector::Intervals::iterator RaceDetector::split(const std::byte* address) {
  auto next = intervals_.lower_bound(address);
  if (next == intervals_.begin()) return next;
  Interval& before = std::prev(next)->second;
  if (before.end <= address) return next;
  Interval rest = before;
  before.end = address;
  return intervals_.emplace_hint(next, address, std::move(rest));
}

std::pair<RaceDetector::Intervals::iterator, RaceDetector::Intervals::iterator> RaceDetector::covering(
    Range range) {
  split(range.begin);
  const auto end = split(range.end());
  auto begin = intervals_.lower_bound(range.begin);
  const std::byte* reached = range.begin;
  for (auto next = begin;; ++next) {
    const std::byte* const start = next == end ? range.end() : next->first;
    if (reached < start) {
      const auto filled =
          intervals_.emplace_hint(next, reached, Interval{.end = start, .last_write = {}, .reads = {}});
      if (reached == range.begin) begin = filled;
    }
    if (next == end) return {begin, end};
    reached = next->second.end;
  }
}

std::string RaceDetector::fault(const Work& earlier, const char* did, const Work& later, const char* does,
                                const Clock& clock) {
  if (earlier.position == 0 || clock.of(earlier.stream) >= earlier.position) return "";
  return format(
      "race on a device: {} (stream {}) {} memory that {} (stream {}) {}, and no event orders them; stream {} must wait for an "
      "event that stream {} records after {}",
      *later.name, later.stream, does, *earlier.name, earlier.stream, did, later.stream, earlier.stream,
      *earlier.name);
}

void RaceDetector::require_order(const Work& earlier, const char* did, const Work& later, const char* does,
                                 const Clock& clock) {
  if (const std::string found = fault(earlier, did, later, does, clock); !found.empty()) throw Error(found);
}

void RaceDetector::forget(Range range) {
  split(range.begin);
  const auto end = split(range.end());
  intervals_.erase(intervals_.lower_bound(range.begin), end);
}

std::string RaceDetector::fault_of_reuse(Range range, const Work& next, const Clock& clock) const {
  auto it = intervals_.upper_bound(range.begin);
  if (it != intervals_.begin()) --it;
  for (; it != intervals_.end() && it->first < range.end(); ++it) {
    const Interval& interval = it->second;
    if (interval.end <= range.begin) continue;
    if (const std::string found = fault(interval.last_write, "writes", next, "may reuse", clock);
        !found.empty())
      return found;
    for (const Work& reader : interval.reads)
      if (const std::string found = fault(reader, "reads", next, "may reuse", clock); !found.empty())
        return found;
  }
  return "";
}

void RaceDetector::read(Range range, const Work& work, const Clock& clock) {
  if (range.bytes == 0) return;
  const auto [begin, end] = covering(range);
  for (auto it = begin; it != end; ++it) {
    Interval& interval = it->second;
    require_order(interval.last_write, "writes", work, "reads", clock);
    const auto same = std::ranges::find(interval.reads, work.stream, &Work::stream);
    if (same == interval.reads.end()) {
      interval.reads.push_back(work);
    } else {
      *same = work;
    }
  }
}

void RaceDetector::write(Range range, const Work& work, const Clock& clock) {
  if (range.bytes == 0) return;
  const auto [begin, end] = covering(range);
  for (auto it = begin; it != end; ++it) {
    const Interval& interval = it->second;
    require_order(interval.last_write, "writes", work, "writes", clock);
    for (const Work& reader : interval.reads) require_order(reader, "reads", work, "writes", clock);
  }
  intervals_.erase(begin, end);
  intervals_.emplace(range.begin, Interval{.end = range.end(), .last_write = work, .reads = {}});
}

}  // namespace stepforge::sim
