// SPDX-License-Identifier: Apache-2.0
// The autograd functions of mixtures of experts, of the kind of functions.h. With k experts per token of hidden size F, width D
// and E experts, they keep for backward, per token:
//
//   route        x (D), which all functions of the layer share, logits (E fp32), indices (k int32)
//   run_experts  gate and up of its k rows (2 F k), their weights (k fp32), where they are (2 k int32)
//   gate_of      x, likewise shared
//   add_gated    the result of the shared expert (D) and its gate (1 fp32)
//
// The rows that go into the experts and those between their products are made again in backward.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/router.h"
#include "stepforge/nn/context.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// A router, and the weights of its two losses in the loss of a training step.
struct RouterSettings {
  RouterOptions options;
  double balance_weight = 0.0;
  double z_weight = 0.0;
  bool biased = false;  ///< its logits have biases

  bool changes_gradients() const { return balance_weight != 0.0 || z_weight != 0.0; }
};

struct RoutedTokens {
  at::Tensor weights;  ///< [N, k] fp32
  at::Tensor indices;  ///< [N, k] int32, the experts of each token; without a gradient
};

/// The choice of experts for x [N, D] by `weight` [E, D] and `bias` [E], which may be null, in fp32 whatever the type of x.
/// `correction`: [E] fp32 or undefined. In training (context.routers) backward adds the gradients of the losses, and the first forward of `layer`
/// reports. `settings` and the correction must outlive the graph.
RoutedTokens route(const at::Tensor& x, Parameter& weight, const at::Tensor& correction,
                   const RouterSettings& settings, int64_t layer, const Context& context,
                   Parameter* bias = nullptr);

/// What experts do with tokens [N, D]: of each the sum over its experts, times their weights. Experts are numbered among
/// those of this rank.
using ExpertFunction = std::function<at::Tensor(const at::Tensor& tokens, const RoutedTokens& routed)>;

/// sum_j down[e_j] (weights[n, j] * swiglu(gate_up[e_j] x[n])) over the experts e_j of each token. gate_up: [E 2F, D], of
/// each expert the rows of its gate and of its up projection; down: [E D, F].
at::Tensor run_experts(const at::Tensor& x, const RoutedTokens& routed, int64_t experts, Parameter& gate_up,
                       Parameter& down);

/// The gate x weight^T of each token, [N, 1] fp32, by a weight [1, D].
at::Tensor gate_of(const at::Tensor& x, Parameter& weight);

/// routed + sigmoid(gate) * shared, with a gate of gate_of().
at::Tensor add_gated(const at::Tensor& routed, const at::Tensor& shared, const at::Tensor& gate);

}  // namespace stepforge
