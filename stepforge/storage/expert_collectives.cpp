// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/expert_collectives.h"

#include <vector>

#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// Of rows of this tensor.
std::vector<std::size_t> byte_sizes(const at::Tensor& rows, std::span<const int64_t> counts) {
  const auto row = static_cast<std::size_t>(rows.size(1)) * rows.element_size();
  std::vector<std::size_t> sizes;
  for (const int64_t count : counts) sizes.push_back(static_cast<std::size_t>(count) * row);
  return sizes;
}

}  // namespace

ExpertExchange expert_exchange(const GroupCommunicators& groups, const ExpertParallel& parallel) {
  if (parallel.degree == 1) return {};
  Communicator* const ranks = groups.at(groups.layout().expert_group, Lane::compute);
  return {parallel, [ranks](const at::Tensor& outgoing, std::span<const int64_t> outgoing_rows,
                            const at::Tensor& incoming, std::span<const int64_t> incoming_rows) {
            ranks->all_to_all(bytes_of(outgoing), byte_sizes(outgoing, outgoing_rows), bytes_of(incoming),
                              byte_sizes(incoming, incoming_rows));
          }};
}

}  // namespace stepforge
