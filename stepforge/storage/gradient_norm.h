// SPDX-License-Identifier: Apache-2.0
// The global norm of gradients that are sharded over ranks, and the factor by which clipping scales them.
#pragma once

#include <span>

#include "stepforge/kernels/reduce.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// What ranks exchange about their shards of the gradients.
enum class NormExchange : uint8_t {
  ranks,   ///< one number per rank: few bytes, but the last bits depend on the number of shards
  chunks,  ///< one per 1,024 elements, joined in logical order: the same bits for every flat partition
};

/// The norm of the gradients of all trained units of `store`, in fp64. Each element counts once: replicas
/// hold equal gradients. The same bits on every rank. A collective of the shard group, on the compute lane,
/// if the units are sharded.
double gradient_norm(const ModelStore& store, NormType type, NormExchange exchange);

/// The joined terms of all elements of a gradient of any shape, chunk by chunk.
double norm_terms(const at::Tensor& gradient, NormType type);

/// The joined terms of all ranks of the shard group, in the order of the ranks. A collective of the compute
/// lane, if there are several.
double join_over_shards(const DataGroups& groups, NormType type, double own);

/// The factor on gradients that brings `norm` down to `max_norm`, like torch.nn.utils.clip_grad_norm_; but 1 if
/// max_norm is 0, which means no clipping here.
double clip_coefficient(double norm, double max_norm);

}  // namespace stepforge
