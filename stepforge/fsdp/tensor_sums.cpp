// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/tensor_sums.h"

#include "stepforge/storage/tensor_collectives.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

at::Tensor summed(const at::Tensor& part, Communicator& ranks) {
  // Autograd sees a copy, whose gradient is that of the sum.
  at::Tensor sum = part.clone(at::MemoryFormat::Contiguous);
  ranks.all_reduce(bytes_of(sum), summed_type(sum));
  return sum;
}

}  // namespace

at::Tensor sum_values(const at::Tensor& part, const ShardMesh& mesh) {
  Communicator* const ranks = mesh.tensor_ranks();
  return ranks == nullptr ? part : summed(part, *ranks);
}

at::Tensor sum_gradients(const at::Tensor& x, const ShardMesh& mesh) {
  Communicator* const ranks = mesh.tensor_ranks();
  if (ranks == nullptr || !x.requires_grad()) return x;
  const at::Tensor input = x.view_as(x);  // a node of its own, so that other uses of x are not summed
  input.register_hook([ranks](const at::Tensor& gradient) { return summed(gradient, *ranks); });
  return input;
}

}  // namespace stepforge
