// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/tensor_collectives.h"

#include <algorithm>
#include <span>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"
#include "stepforge/comm/tree_sum.h"
#include "stepforge/storage/passing.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// The largest of the values of all ranks, element by element.
void take_largest(Communicator& ranks, const at::Tensor& values) {
  const std::span<float> own(values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel()));
  const std::vector<float> all = gather_values(ranks, own);
  for (size_t i = 0; i < all.size(); ++i) own[i % own.size()] = std::max(own[i % own.size()], all[i]);
}

void add_shares(std::span<const at::Tensor> shares, const at::Tensor& sum) {
  std::vector<const std::byte*> sources;
  for (const at::Tensor& share : shares) sources.push_back(bytes_of(share).data());
  tree_sum(sources, bytes_of(sum).data(), bytes_of(sum).size(), summed_type(sum));
}

}  // namespace

DType summed_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    default:
      throw Error(
          format("tensors of type {} are not summed over ranks", c10::toString(tensor.scalar_type())));
  }
}

TensorExchange tensor_exchange(const GroupCommunicators& groups, const TensorParallel& parallel) {
  Communicator* const ranks = groups.at(groups.layout().tensor_group, Lane::compute);
  if (ranks == nullptr) return {};
  TensorExchange exchange{
      .parallel = parallel,
      .sum = [ranks](const at::Tensor& tensor) { ranks->all_reduce(bytes_of(tensor), summed_type(tensor)); },
      .max = [ranks](const at::Tensor& tensor) { take_largest(*ranks, tensor); },
      .gather = [ranks](const at::Tensor& slice,
                        const at::Tensor& whole) { ranks->all_gather(bytes_of(slice), bytes_of(whole)); },
      .sum_slice =
          [ranks](const at::Tensor& whole, const at::Tensor& slice) {
            ranks->reduce_scatter(bytes_of(whole), bytes_of(slice), summed_type(slice));
          }};
  if (parallel.async) {
    exchange.pass = pass_tensors(groups, groups.layout().tensor_group);
    exchange.add = add_shares;
  }
  return exchange;
}

}  // namespace stepforge
