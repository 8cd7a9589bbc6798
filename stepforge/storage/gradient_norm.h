// SPDX-License-Identifier: Apache-2.0
// The global norm of gradients that are sharded over ranks, and the factor by which clipping scales them.
#pragma once

#include <span>

#include "stepforge/kernels/reduce.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// What ranks exchange to join the terms of their shards.
enum class NormExchange : uint8_t {
  ranks,   ///< one number per rank: few bytes, but the last bits depend on the number of shards
  chunks,  ///< one number per 1,024 elements, joined in logical order: the same bits for every flat partition
};

/// The norm of the gradients of all trained units of `store`, in fp64, the same bits on every rank. Each
/// element counts once, because replicas hold equal gradients. If the units are sharded, a collective of the
/// shard group on the compute lane.
double gradient_norm(const ModelStore& store, NormType type, NormExchange exchange);

/// The joined terms of all elements of a gradient of any shape, chunk by chunk.
double norm_terms(const at::Tensor& gradient, NormType type);

/// The joined terms of all ranks of the shard group, in rank order. A collective of the compute lane if there
/// are several ranks.
double join_over_shards(const DataGroups& groups, NormType type, double own);

/// The factor by which gradients are multiplied to limit `norm` to `max_norm`, as in
/// torch.nn.utils.clip_grad_norm_. 1 if max_norm is 0, which means no clipping.
double clip_coefficient(double norm, double max_norm);

}  // namespace stepforge
