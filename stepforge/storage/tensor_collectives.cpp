// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/tensor_collectives.h"

#include <span>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/tree_sum.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/storage/passing.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// The largest of the values of all ranks, element by element.
void take_largest(Communicator& ranks, const at::Tensor& values) {
  const at::Tensor all = at::empty({ranks.size(), values.numel()}, values.options());
  ranks.all_gather(bytes_of(values), bytes_of(all));
  at::Tensor largest = values;
  at::amax_out(largest, all, 0);
}

/// tree_sum() in tensor operations, for any device.
at::Tensor sum_of(std::span<const at::Tensor> shares) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& share : shares) sums.push_back(share.to(compute_type(share)));
  while (sums.size() > 1) {
    std::vector<at::Tensor> pairs;
    for (size_t i = 0; i + 1 < sums.size(); i += 2) pairs.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 == 1) pairs.push_back(sums.back());
    sums = std::move(pairs);
  }
  return sums.front();
}

void add_shares(std::span<const at::Tensor> shares, const at::Tensor& sum) {
  if (!sum.is_cpu()) {
    sum.copy_(sum_of(shares));
    return;
  }
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
