// SPDX-License-Identifier: Apache-2.0
// Sums over the ranks of tensor parallelism inside layers whose matrices are divided over them.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/fsdp/shard_mesh.h"

namespace stepforge {

/// The sum of `part` over the ranks of tensor parallelism, the same bits on all of them: what a layer that is
/// divided along its inputs returns. Backward gives every rank the whole gradient. Both functions are
/// collectives of mesh.tensor_ranks() for tensors of any shape and of dtype float, double, bfloat16 or half
/// (summed in fp32 and rounded once), and throw Error for another dtype. With one rank they return their
/// argument.
at::Tensor sum_values(const at::Tensor& part, const ShardMesh& mesh);

/// `x`, which is the same on all ranks of tensor parallelism, as the input of a layer that is divided along
/// its outputs. Each rank's layer gives a part of its gradient, and backward sums them. `mesh` must outlive
/// the graph.
at::Tensor sum_gradients(const at::Tensor& x, const ShardMesh& mesh);

}  // namespace stepforge
