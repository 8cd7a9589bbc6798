// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/passing.h"

#include <memory>
#include <string>

#include "stepforge/storage/lane_worker.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// The members that a message of `distance` goes to and comes from.
std::pair<int, int> partners(const Communicator& ranks, int64_t distance) {
  const int size = ranks.size();
  const auto steps = static_cast<int>(distance);
  return {(ranks.rank() + steps) % size, (ranks.rank() + size - steps) % size};
}

}  // namespace

PassTensors pass_tensors(const GroupCommunicators& groups, int group) {
  Communicator* const ranks = groups.at(group, Lane::peer);
  const auto lane = std::make_shared<LaneWorker>(
      /*threaded=*/true, [&groups](const std::string& reason) { groups.abort(reason); }, groups.compute());
  GroupMeter& meter = groups.meter(group);
  return [=, &meter](const at::Tensor& outgoing, const at::Tensor& incoming, int64_t distance) {
    const auto [to, from] = partners(*ranks, distance);
    const LaneTask task = lane->submit([=, to = to, from = from] {
      ranks->send_receive(bytes_of(outgoing), to, bytes_of(incoming), from);
      // After a failure nobody asks for the future, and both are freed.
      use_on_current_stream(outgoing);
      use_on_current_stream(incoming);
    });
    const auto wait = [done = task, &meter]() mutable {
      const WaitTimer timer(meter);
      done.wait();
    };
    return std::async(std::launch::deferred, wait).share();
  };
}

}  // namespace stepforge
