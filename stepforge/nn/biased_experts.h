// SPDX-License-Identifier: Apache-2.0
// A mixture of experts with biases in place of an MLP, as in gpt-oss.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/kernels/clamped_swiglu.h"
#include "stepforge/kernels/divided.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/expert_functions.h"

namespace stepforge {

/// The weights of all experts, [E, in, out]: the layout of gpt-oss in Hugging Face files. Columns of gate and up alternate.
struct BiasedExperts {
  Parameter& gate_up;       ///< [E, D, 2 F]
  Parameter& gate_up_bias;  ///< [E, 2 F]
  Parameter& down;          ///< [E, F, D]
  Parameter& down_bias;     ///< [E, D]
};

/// sum_j weights[n, j] (down[e_j]^T h + down_bias[e_j]) over the experts e_j of each token, where h is the activation of
/// gate_up[e_j]^T x[n] + gate_up_bias[e_j]. Keeps for backward what run_experts() keeps.
at::Tensor run_biased_experts(const at::Tensor& x, const RoutedTokens& routed, const BiasedExperts& experts,
                              const ClampedSwiglu& activation);

/// x + experts(norm(x)).
class BiasedExpertLayer {
 public:
  /// `prefix` is "layers.3.mlp"; the parameters norm, router, router_bias, expert_gate_up, expert_gate_up_bias, expert_down
  /// and expert_down_bias are looked up (catalog/biased_experts.h). Throws Error if the router does not fit the experts.
  BiasedExpertLayer(const ParameterLookup& parameters, const std::string& prefix,
                    const RouterSettings& router, double eps, int64_t layer, TensorExchange tensor = {});
  at::Tensor forward(const at::Tensor& x, const Context& context);

 private:
  Parameter& norm_;
  Parameter& router_;
  Parameter& router_bias_;
  BiasedExperts experts_;
  RouterSettings settings_;
  double eps_;
  int64_t layer_;
  TensorExchange tensor_;
};

}  // namespace stepforge
