// The global norm of gradients that are cut over ranks, and what clipping makes of it.
#pragma once

#include <span>

#include "stepforge/kernels/reduce.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// What a rank tells the others about its part of the gradients.
enum class NormExchange : uint8_t {
  ranks,   ///< one number: few bytes; the last bits depend on how many ranks hold the units
  chunks,  ///< one for each 1,024 elements, joined in logical order: the same bits for every cut into
           ///< intervals
};

/// The norm of the gradients of all trained units of `store`, in fp64. Each element counts once: replicas
/// hold equal gradients. The same bits on every rank. A collective of the shard group, on the compute lane,
/// if the units are cut.
double gradient_norm(const ModelStore& store, NormType type, NormExchange exchange);

/// The joined terms of all ranks that share cut units, in the order of the ranks. A collective of the compute
/// lane, if there are several.
double join_over_shards(const DataGroups& groups, NormType type, double own);

/// The factor on gradients that brings `norm` down to `max_norm`, as torch.nn.utils.clip_grad_norm_ has it;
/// but 1 if max_norm is 0, which means no clipping here.
double clip_coefficient(double norm, double max_norm);

}  // namespace stepforge
