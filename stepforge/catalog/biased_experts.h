// SPDX-License-Identifier: Apache-2.0
// Parameters and cost of a mixture of experts with biases (nn/biased_experts.h). What a token keeps is what expert_layers.h
// states; the biases need fp32 memory for their gradients, whatever the number of tokens.
#pragma once

#include <string>

#include "stepforge/catalog/expert_layers.h"

namespace stepforge {

/// norm, router [E, D] with a bias, expert_gate_up [E, D, 2 F], expert_gate_up_bias [E, 2 F], expert_down [E, F, D],
/// expert_down_bias [E, D], residual add; each is one tensor of the file. `prefix` is "layers.3.mlp", `hf_prefix`
/// "model.layers.3."; `depth_std` initialises what ends in the residual. The region is "mlp". Of `dims` the shared expert
/// is not used.
LayerSpec biased_expert_layer(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                              double depth_std, bool dropout);

}  // namespace stepforge
