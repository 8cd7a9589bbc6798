// SPDX-License-Identifier: Apache-2.0
// How files store a weight of the model: as the tensor of its name, as a part of a tensor of all experts
// (catalog/stacked_experts.h), or as MXFP4 (mxfp4.h).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

inline constexpr std::array<DType, 3> kWeightTypes = {DType::f32, DType::bf16, DType::f16};

/// A weight that is a slice of a tensor of the folder, usually all of it.
struct WeightPlace {
  const StoredTensor* tensor = nullptr;
  TensorSlice slice;
  std::vector<int64_t> shape;  ///< of the weight: the last sizes of `slice`, before which all are 1

  /// `part` of the weight as a slice of the tensor.
  TensorSlice slice_of(TensorSlice part) const;
};

/// nullopt if the folder does not have it, or has it as MXFP4. The folder must outlive the result.
std::optional<WeightPlace> find_weight(const TensorFolder& folder, const std::string& name);

/// Whether the folder has the weight in any form.
bool holds_weight(const TensorFolder& folder, const std::string& name);

/// Every name of a tensor in which a folder may have the weight.
std::vector<std::string> stored_names(const std::string& name);

/// Expects each of the tensors, in any form that its folder may have, by name and shape. A tensor of all experts must have
/// exactly these experts, and the folder must not store any of them separately too.
void expect_weights(TensorComparison& comparison, const TensorFolder& folder,
                    const std::vector<NamedTensor>& tensors);

}  // namespace stepforge
