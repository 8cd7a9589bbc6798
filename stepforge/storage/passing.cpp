// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/passing.h"

#include <memory>
#include <string>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

PassTensors pass_by_thread(const GroupCommunicators& groups, int group) {
  Communicator* const ranks = groups.at(group, Lane::peer);
  const auto lane = std::make_shared<LaneWorker>(
      /*threaded=*/true, [&groups](const std::string& reason) { groups.abort(reason); });
  GroupMeter& meter = groups.meter(group);
  return [=, &meter](const at::Tensor& outgoing, const at::Tensor& incoming, int64_t distance) {
    const auto [to, from] = partners(*ranks, distance);
    const LaneTask task = lane->submit(
        [=, to = to, from = from] { ranks->send_receive(bytes_of(outgoing), to, bytes_of(incoming), from); });
    const auto wait = [done = task.future(), &meter] {
      const WaitTimer timer(meter);
      done.get();
    };
    return std::async(std::launch::deferred, wait).share();
  };
}

/// The host waits for nothing: the current stream waits when the future is asked for.
PassTensors pass_by_stream(const GroupCommunicators& groups, int group, c10::Device device) {
  Communicator* const ranks = groups.at(group, Lane::peer);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStreamFromGlobalPool(device);
  return [=](const at::Tensor& outgoing, const at::Tensor& incoming, int64_t distance) {
    c10::Event given(device.type());
    given.record(guard.getStream(device));
    given.block(stream);
    const auto arrived = std::make_shared<c10::Event>(device.type());
    {
      const c10::StreamGuard beside(stream);
      const auto [to, from] = partners(*ranks, distance);
      ranks->send_receive(bytes_of(outgoing), to, bytes_of(incoming), from);
      use_on_current_stream(outgoing);
      use_on_current_stream(incoming);
      arrived->record(stream);
    }
    const auto wait = [=] { arrived->block(guard.getStream(device)); };
    return std::async(std::launch::deferred, wait).share();
  };
}

}  // namespace

PassTensors pass_tensors(const GroupCommunicators& groups, int group) {
  const c10::Device device = groups.device();
  return device.is_cpu() ? pass_by_thread(groups, group) : pass_by_stream(groups, group, device);
}

}  // namespace stepforge
