// The tensors of a checkpoint or a Hugging Face folder, and where their elements lie in the flat buffers.
// Every segment of a packed parameter is one tensor; a tied parameter appears once, under its owner's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace stepforge {

struct NamedTensor {
  std::string name;  ///< the segment's Hugging Face name
  std::vector<int64_t> shape;
  size_t unit = 0;       ///< index into ModelSpec::units
  int64_t offset = 0;    ///< of the first element in the unit's flat buffers
  int64_t elements = 0;  ///< they are consecutive
};

/// In the order of units, parameters and segments.
std::vector<NamedTensor> named_tensors(const ModelSpec& model);

/// Names of tensors that hold optimizer state start with this; no tensor of a model does.
inline constexpr std::string_view kOptimizerPrefix = "optim.";

/// "optim.state.<name>.<slot>"
std::string optimizer_tensor_name(std::string_view name, std::string_view slot);

}  // namespace stepforge
