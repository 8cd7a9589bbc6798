// SPDX-License-Identifier: Apache-2.0
// Experts with biases, as in gpt-oss.
#pragma once

#include <string>

#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/expert_functions.h"

namespace stepforge {

/// The weights of the experts of this rank, [E, in, out]: the layout of gpt-oss in Hugging Face files. Columns of gate and up
/// alternate. If experts are divided, a rank has some of their hidden units, and adds down_bias in some of the D columns,
/// which its slice says: so each bias is added once.
struct BiasedExperts {
  Parameter& gate_up;       ///< [E, D, 2 F]
  Parameter& gate_up_bias;  ///< [E, 2 F]
  Parameter& down;          ///< [E, F, D]
  Parameter& down_bias;     ///< [E, D], or columns of it
};

/// sum_j weights[n, j] (down[e_j]^T h + down_bias[e_j]) over the experts e_j of each token, where h is the activation of
/// gate_up[e_j]^T x[n] + gate_up_bias[e_j]. Keeps for backward what run_experts() keeps.
at::Tensor run_biased_experts(const at::Tensor& x, const RoutedTokens& routed, const BiasedExperts& experts,
                              const ClampedSwiglu& activation);

/// These as what a layer has (ExpertLayer). Looks up expert_gate_up, expert_gate_up_bias, expert_down and expert_down_bias.
ExpertFunction biased_experts(const ParameterLookup& parameters, const std::string& prefix);

}  // namespace stepforge
