// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in place of an MLP, and its parts: where the experts are spread over ranks, each part is in a block
// of its own, between which rows pass to the ranks that have their experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stepforge/kernels/divided.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/expert_functions.h"

namespace stepforge {

/// What the tokens of a micro-batch bring to the experts.
struct ExpertTokens {
  at::Tensor residual;  ///< [N, D], the input of the layer
  at::Tensor tokens;    ///< [N, D], normed
  RoutedTokens routed;
};

/// Norm and router.
class ExpertRouter {
 public:
  /// `prefix` is "layers.3.mlp"; the parameters norm, router and, if it is biased, router_bias are looked up. `correction`:
  /// of the router, [E] fp32, or undefined; whoever balances the experts changes it between steps. Throws Error if the router
  /// does not fit `settings`.
  ExpertRouter(const ParameterLookup& parameters, const std::string& prefix, const RouterSettings& settings,
               double eps, int64_t layer, at::Tensor correction = {});
  ExpertTokens forward(const at::Tensor& x, const Context& context);

 private:
  Parameter& norm_;
  Parameter& router_;
  Parameter* bias_;
  RouterSettings settings_;
  double eps_;
  int64_t layer_;
  at::Tensor correction_;
};

/// SwiGLU MLPs without biases (run_experts()). Looks up expert_gate_up and expert_down. Those with biases: biased_experts.h.
ExpertFunction swiglu_experts(const ParameterLookup& parameters, const std::string& prefix);

struct SharedResult {
  at::Tensor result;  ///< [N, D]
  at::Tensor gate;    ///< [N, 1] fp32; undefined without one
};

/// A SwiGLU MLP that all tokens take, and its gate, which is optional.
class SharedExpert {
 public:
  /// Looks up shared_gate_up, shared_down and, if it is `gated`, shared_gate.
  SharedExpert(const ParameterLookup& parameters, const std::string& prefix, bool gated);
  SharedResult forward(const at::Tensor& tokens);

 private:
  Parameter& gate_up_;
  Parameter& down_;
  Parameter* gate_;
};

/// residual + dropout(results + shared). `shared`: its result is undefined if there is no such expert. With sequence
/// parallelism all are this rank's slice of the tokens, as all that an expert layer takes and makes.
at::Tensor join_experts(const at::Tensor& results, const SharedResult& shared, const at::Tensor& residual,
                        int64_t layer, const Context& context, const TensorExchange& tensor = {});

/// All of it on one rank: x + experts(norm(x)) + shared(norm(x)).
class ExpertLayer {
 public:
  enum class Shared : uint8_t { none, plain, gated };

  /// Looks up what its parts do, besides `experts` (catalog/expert_layers.h states their shapes), and throws what they throw.
  ExpertLayer(const ParameterLookup& parameters, const std::string& prefix, const RouterSettings& router,
              ExpertFunction experts, Shared shared, double eps, int64_t layer, at::Tensor correction = {},
              TensorExchange tensor = {});
  at::Tensor forward(const at::Tensor& x, const Context& context);

 private:
  ExpertRouter router_;
  ExpertFunction experts_;
  std::optional<SharedExpert> shared_;
  int64_t layer_;
  TensorExchange tensor_;
};

}  // namespace stepforge
