// SPDX-License-Identifier: Apache-2.0
// Parameters that are slices of larger tensors, which the ranks of tensor parallelism divide among them. A
// slice is one sub-tensor of its ParameterSpec (modelspec/parameter.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/fsdp/fsdp_param_group.h"
#include "stepforge/fsdp/shard_mesh.h"
#include "stepforge/modelspec/parameter.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// A parameter that is this rank's slice of a larger tensor.
struct TensorSliceOf {
  at::Tensor parameter;
  std::vector<int64_t> offsets;  ///< where the slice begins in the whole tensor
  std::vector<int64_t> shape;    ///< of the whole tensor
};

/// The specification of `parameter`: of a slice if `slices` has the tensor.
ParameterSpec parameter_spec(const NamedParameter& parameter, const std::vector<TensorSliceOf>& slices);

/// The shape of the tensor that a parameter is, or is a slice of; and which slice.
std::vector<int64_t> whole_shape(const ParameterSpec& parameter);
TensorSlice place_in_whole(const ParameterSpec& parameter);

/// This rank's part of that tensor: `unit`'s shard of parameter `index`.
std::vector<ShardSlice> parts_of_whole(const UnitStore& unit, size_t index);

/// The slices of one tensor on all ranks of tensor parallelism, given `own`. A collective of `tensor_ranks`;
/// null: one rank.
std::vector<TensorSlice> places_of_ranks(Communicator* tensor_ranks, const TensorSlice& own);

/// Compares the parameters of a unit on all ranks of tensor parallelism. A collective of them. Throws
/// UsageError on each of them, if on any
/// - a slice is not inside its tensor, or their numbers of dimensions differ;
/// - there are other parameters, whole tensors or slices;
/// - the slices of a tensor overlap or do not cover it.
void check_slices(const ShardMesh& mesh, const std::vector<NamedParameter>& parameters,
                  const std::vector<TensorSliceOf>& slices);

}  // namespace stepforge
