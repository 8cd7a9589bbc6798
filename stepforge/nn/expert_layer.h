// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in place of an MLP.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/nn/block.h"
#include "stepforge/nn/expert_functions.h"

namespace stepforge {

/// Pre-norm mixture of experts with a residual: x + experts(norm(x)) + shared(norm(x)), where the shared expert, a SwiGLU
/// MLP that all tokens take, and its gate are optional.
class ExpertLayer {
 public:
  enum class Shared : uint8_t { none, plain, gated };

  /// `prefix` is "layers.3.mlp"; the parameters norm, router, expert_gate_up, expert_down, and those of a shared expert, shared_gate_up,
  /// shared_down and if it is gated shared_gate, are looked up (catalog/expert_layers.h states their shapes). `correction`:
  /// of the router, [E] fp32, or undefined; whoever balances the experts changes it between steps. `exchange`: if
  /// expert_gate_up and expert_down have only this rank's experts. Throws Error if the
  /// router does not fit the experts.
  ExpertLayer(const ParameterLookup& parameters, const std::string& prefix, const RouterSettings& router,
              Shared shared, double eps, int64_t layer, at::Tensor correction = {},
              ExpertExchange exchange = {});
  at::Tensor forward(const at::Tensor& x, const Context& context);

 private:
  at::Tensor add_shared(const at::Tensor& routed, const at::Tensor& x) const;

  Parameter& norm_;
  Parameter& router_;
  Parameter& gate_up_;
  Parameter& down_;
  Parameter* shared_gate_up_ = nullptr;
  Parameter* shared_down_ = nullptr;
  Parameter* shared_gate_ = nullptr;
  RouterSettings settings_;
  double eps_;
  int64_t layer_;
  at::Tensor correction_;
  ExpertExchange exchange_;
};

}  // namespace stepforge
