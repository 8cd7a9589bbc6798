// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint or a Hugging Face folder, and the rows of parameters that they correspond to.
// Every sub-tensor of a packed parameter is one tensor; a tied parameter appears once, under its owner's
// name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

struct NamedTensor {
  std::string name;            ///< the sub-tensor's Hugging Face name
  std::vector<int64_t> shape;  ///< of the whole tensor
  int64_t elements = 0;        ///< of the whole tensor
  size_t unit = 0;             ///< index of its unit in the model or store
  size_t parameter = 0;        ///< index in the unit
  int64_t row = 0;             ///< its first row in the parameter
  TensorSlice slice;           ///< the part of the tensor that the parameter holds
};

/// In the order of units, parameters and sub-tensors.
std::vector<NamedTensor> named_tensors(const ModelSpec& model);
/// The tensors of which this rank holds a part. In a pipeline, other ranks hold others.
std::vector<NamedTensor> named_tensors(const ModelStore& store);

/// Names of tensors that hold optimizer state start with this; no tensor of a model does.
inline constexpr std::string_view kOptimizerPrefix = "optim.";

/// Field of a checkpoint's state: the number of optimizer steps. Present only in checkpoints with
/// optimizer state.
inline constexpr std::string_view kOptimizerSteps = "optimizer_steps";

/// "optim.state.<name>.<slot>"
std::string optimizer_tensor_name(std::string_view name, std::string_view slot);

}  // namespace stepforge
