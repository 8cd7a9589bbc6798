// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/lane_streams.h"

#include <algorithm>
#include <exception>

#include <c10/core/StreamGuard.h>

#include "stepforge/kernels/streams.h"

namespace stepforge {

namespace {
constexpr auto kCallersLane = static_cast<std::size_t>(Lane::compute);
}  // namespace

LaneStreams::LaneStreams(const StepProgram& program, const ModelStore& store)
    : device_(store.device()), needs_(program.operations.size()), done_(program.operations.size()) {
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    lanes_.push_back(static_cast<std::size_t>(operation.lane));
    if (lanes_[i] != kCallersLane && !streams_.at(lanes_[i]))
      streams_.at(lanes_[i]) = store.lane_stream(operation.lane);
    std::array<std::optional<std::size_t>, kLanes> last;
    for (const int needed : operation.needs) {
      const auto index = static_cast<std::size_t>(needed);
      std::optional<std::size_t>& of_lane = last.at(lanes_[index]);
      if (lanes_[index] != lanes_[i]) of_lane = std::max(of_lane.value_or(index), index);
    }
    for (const std::optional<std::size_t>& need : last) {
      if (!need) continue;
      needs_[i].push_back(*need);
      if (!done_[*need]) done_[*need].emplace(device_.type());
    }
  }
}

void LaneStreams::run(const std::function<void(std::size_t operation)>& execute) {
  const c10::Stream compute = current_stream(device_);
  try {
    issue(compute, execute);
    join(compute);
  } catch (...) {
    try {
      join(compute);                   // what is freed now must not be reused while a lane still works on it
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device has failed too
    }
    throw;
  }
}

void LaneStreams::issue(const c10::Stream& compute,
                        const std::function<void(std::size_t operation)>& execute) {
  for (const std::optional<c10::Stream>& stream : streams_)
    if (stream) put_after(compute, *stream);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const c10::Stream stream = lanes_[i] == kCallersLane ? compute : *streams_.at(lanes_[i]);
    for (const std::size_t needed : needs_[i]) done_[needed]->block(stream);
    const c10::StreamGuard guard(stream);
    execute(i);
    if (done_[i]) done_[i]->record(stream);
  }
}

void LaneStreams::join(const c10::Stream& compute) const {
  for (const std::optional<c10::Stream>& stream : streams_)
    if (stream) put_after(*stream, compute);
}

}  // namespace stepforge
