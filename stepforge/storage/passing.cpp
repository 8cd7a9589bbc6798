// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/passing.h"

#include <memory>
#include <string>

#include "stepforge/storage/lane_worker.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

PassTensors pass_tensors(const GroupCommunicators& groups, int group) {
  Communicator* const ranks = groups.at(group, Lane::peer);
  const auto lane = std::make_shared<LaneWorker>(
      /*threaded=*/true, [&groups](const std::string& reason) { groups.abort(reason); });
  GroupMeter& meter = groups.meter(group);
  return [=, &meter](const at::Tensor& outgoing, const at::Tensor& incoming, int64_t distance) {
    const int size = ranks->size();
    const int to = (ranks->rank() + static_cast<int>(distance)) % size;
    const int from = (ranks->rank() + size - static_cast<int>(distance)) % size;
    const LaneTask task =
        lane->submit([=] { ranks->send_receive(bytes_of(outgoing), to, bytes_of(incoming), from); });
    const auto wait = [done = task.future(), &meter] {
      const WaitTimer timer(meter);
      done.get();
    };
    return std::async(std::launch::deferred, wait).share();
  };
}

}  // namespace stepforge
