// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/context_collectives.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/storage/lane_worker.h"
#include "stepforge/storage/tensor_collectives.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

using Shift = decltype(ContextExchange::shift);

/// On a lane of its own.
Shift ring_shift(const GroupCommunicators& groups) {
  Communicator* const ranks = groups.at(groups.layout().keys_group, Lane::peer);
  const int next = (ranks->rank() + 1) % ranks->size();
  const int before = (ranks->rank() + ranks->size() - 1) % ranks->size();
  const auto lane = std::make_shared<LaneWorker>(
      /*threaded=*/true, [&groups](const std::string& reason) { groups.abort(reason); });
  GroupMeter& meter = groups.meter(groups.layout().keys_group);
  return [=, &meter](const at::Tensor& outgoing, const at::Tensor& incoming) {
    const LaneTask task =
        lane->submit([=] { ranks->send_receive(bytes_of(outgoing), next, bytes_of(incoming), before); });
    const auto wait = [done = task.future(), &meter] {
      const WaitTimer timer(meter);
      done.get();
    };
    return std::async(std::launch::deferred, wait).share();
  };
}

}  // namespace

ContextExchange context_exchange(const GroupCommunicators& groups, const ContextParallel& parallel) {
  if (parallel.degree == 1) return {};
  ContextExchange exchange;
  exchange.parallel = parallel;
  const RankLayout& layout = groups.layout();
  if (Communicator* const ranks = groups.at(layout.heads_group, Lane::compute)) {
    exchange.all_to_all = [ranks](const at::Tensor& outgoing, const at::Tensor& incoming) {
      const auto out = bytes_of(outgoing);
      const auto degree = static_cast<std::size_t>(ranks->size());
      const std::vector<std::size_t> sizes(degree, out.size() / degree);
      ranks->all_to_all(out, sizes, bytes_of(incoming), sizes);
    };
  }
  if (parallel.has_ring()) {
    exchange.shift = ring_shift(groups);
  } else if (Communicator* const ranks = groups.at(layout.keys_group, Lane::compute)) {
    exchange.gather = [ranks](const at::Tensor& part, const at::Tensor& parts) {
      ranks->all_gather(bytes_of(part), bytes_of(parts));
    };
    exchange.sum_parts = [ranks](const at::Tensor& parts, const at::Tensor& part) {
      ranks->reduce_scatter(bytes_of(parts), bytes_of(part), summed_type(part));
    };
  }
  return exchange;
}

}  // namespace stepforge
