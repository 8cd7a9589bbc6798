// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/context_collectives.h"

#include <vector>

#include "stepforge/storage/passing.h"
#include "stepforge/storage/tensor_collectives.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

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
    exchange.pass = pass_tensors(groups, layout.keys_group);
  } else if (Communicator* const ranks = groups.at(layout.keys_group, Lane::compute)) {
    exchange.gather = [ranks](const at::Tensor& part, const at::Tensor& parts) {
      ranks->all_gather(bytes_of(part), bytes_of(parts));
    };
    exchange.sum_parts = [ranks](const at::Tensor& parts, const at::Tensor& part) {
      ranks->reduce_scatter(bytes_of(parts), bytes_of(part), summed_type(part));
    };
  }
  exchange.sum = [keys = groups.at(layout.keys_group, Lane::compute),
                  heads = groups.at(layout.heads_group, Lane::compute)](const at::Tensor& tensor) {
    for (Communicator* const ranks : {heads, keys})
      if (ranks != nullptr) ranks->all_reduce(bytes_of(tensor), summed_type(tensor));
  };
  return exchange;
}

}  // namespace stepforge
