// SPDX-License-Identifier: Apache-2.0
// Parameters of experts with biases, whose matrices are in one tensor for all experts (gpt-oss).
#pragma once

#include <string>
#include <vector>

#include "stepforge/catalog/expert_layers.h"

namespace stepforge {

/// router_bias [experts], the tensor `hf_name`. `prefix` is "layers.3.mlp".
ParameterSpec router_bias(const std::string& prefix, const std::string& hf_name, int64_t experts);

/// expert_gate_up [E, D, 2 F], expert_gate_up_bias [E, 2 F], expert_down [E, F, D], expert_down_bias [E, D], each a slice of
/// one tensor of the file, whose name begins with `hf_prefix`: of this rank's experts. A part of an expert has F of its
/// hidden units, and some columns of expert_down_bias, since the results of all parts are added up. `depth_std` initialises
/// what ends in the residual.
std::vector<ParameterSpec> stacked_parameters(const std::string& prefix, const std::string& hf_prefix,
                                              const ExpertDims& dims, const ExpertNames& names,
                                              double depth_std, const ExpertParallel& parallel);

}  // namespace stepforge
