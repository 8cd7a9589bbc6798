// SPDX-License-Identifier: Apache-2.0
// The global norm of gradients that are sharded over ranks. Terms are scalars (kernels/scalars.h): sums of
// |x|^p (for inf the largest |x|) in fp64, from which norm_of_terms() computes the norm.
#pragma once

#include "stepforge/kernels/reduce.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// What ranks exchange to combine the norms of their shards.
enum class NormExchange : uint8_t {
  ranks,   ///< one number per rank: fewer bytes, but the last bits depend on the number of shards
  chunks,  ///< one number per 1,024 elements, in logical order: the same bits for every flat partition
};

/// Sets `terms` to those of the gradients of all trained units of `store`, bitwise equal on all ranks. Each element
/// counts once: replicas hold equal gradients, and only one rank counts parameters that all tensor-parallel
/// ranks hold. A collective of `shards`, the units' shard group on the compute lane; null if
/// each rank holds whole units.
void gradient_norm_terms(const ModelStore& store, NormType type, NormExchange exchange, Communicator* shards,
                         const at::Tensor& terms);

/// The same for each unit alone: terms [units of the whole model], 0 for those of other pipeline stages.
void unit_norm_terms(const ModelStore& store, NormType type, NormExchange exchange, Communicator* shards,
                     const at::Tensor& terms);

/// Combines `terms` [units] of the ranks of a group, unit by unit, in rank order.
void join_unit_terms(Communicator& ranks, NormType type, const at::Tensor& terms);

/// total = the terms of all units together, in their order.
void join_units(NormType type, const at::Tensor& terms, const at::Tensor& total);

/// Sets `terms` to those of a gradient of any shape, combined chunk by chunk (kernels/reduce.h).
void norm_terms(const at::Tensor& gradient, NormType type, const at::Tensor& terms);

/// Combines the `terms` of the ranks of `shards`, in rank order. Null: one rank.
void join_over_shards(Communicator* shards, NormType type, const at::Tensor& terms);

}  // namespace stepforge
