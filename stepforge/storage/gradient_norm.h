// SPDX-License-Identifier: Apache-2.0
// The global norm of gradients that are sharded over ranks, and the factor by which clipping scales them.
#pragma once

#include <span>

#include "stepforge/kernels/reduce.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// What ranks exchange to combine the norms of their shards.
enum class NormExchange : uint8_t {
  ranks,   ///< one number per rank: fewer bytes, but the last bits depend on the number of shards
  chunks,  ///< one number per 1,024 elements, in logical order: the same bits for every flat partition
};

/// The sum of |x|^p (for inf the largest |x|) over the gradients of all trained units of `store`, computed in
/// fp64 and bitwise equal on all ranks; norm_of_terms() is the norm. Each element counts once: replicas hold
/// equal gradients, and of parameters that all ranks of tensor parallelism hold, only one rank counts them. A
/// collective of `shards`, the units' shard group on the compute lane; null if each rank holds whole units.
double gradient_norm_terms(const ModelStore& store, NormType type, NormExchange exchange,
                           Communicator* shards = nullptr);

/// The sum of |x|^p over all elements of a gradient of any shape, or for inf the largest |x|: the norm before
/// its root is taken. Combined chunk by chunk (kernels/reduce.h).
double norm_terms(const at::Tensor& gradient, NormType type);

/// Combines `own`, the norm_terms() of this rank, over the ranks of `shards`, in rank order. Null: one rank.
double join_over_shards(Communicator* shards, NormType type, double own);

/// The factor by which gradients are multiplied to limit `norm` to `max_norm`, as in
/// torch.nn.utils.clip_grad_norm_. 1 if max_norm is 0, which means no clipping.
double clip_coefficient(double norm, double max_norm);

}  // namespace stepforge
