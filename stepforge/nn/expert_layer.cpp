// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/expert_layer.h"

#include <utility>

#include "stepforge/nn/functions.h"

namespace stepforge {

ExpertLayer::ExpertLayer(const ParameterLookup& parameters, const std::string& prefix,
                         const RouterSettings& router, Shared shared, double eps, int64_t layer,
                         at::Tensor correction, ExpertExchange exchange)
    : norm_(parameters(prefix + ".norm")),
      router_(parameters(prefix + ".router")),
      gate_up_(parameters(prefix + ".expert_gate_up")),
      down_(parameters(prefix + ".expert_down")),
      settings_(router),
      eps_(eps),
      layer_(layer),
      correction_(std::move(correction)),
      exchange_(std::move(exchange)) {
  check_router(settings_.options, router_.spec().shape.at(0));
  if (shared == Shared::none) return;
  shared_gate_up_ = &parameters(prefix + ".shared_gate_up");
  shared_down_ = &parameters(prefix + ".shared_down");
  if (shared == Shared::gated) shared_gate_ = &parameters(prefix + ".shared_gate");
}

at::Tensor ExpertLayer::forward(const at::Tensor& x, const Context& context) {
  auto [normed, residual] = pre_norm(x, norm_, {.eps = eps_});
  const RoutedTokens routed = route(normed, router_, correction_, settings_, layer_, context);
  const int64_t experts = router_.spec().shape.at(0);
  const at::Tensor results = exchange_.several()
                                 ? run_spread_experts(normed, routed, experts, gate_up_, down_, exchange_)
                                 : run_experts(normed, routed, experts, gate_up_, down_);
  const at::Tensor branch = add_shared(results, normed);
  // The site of the dropout of an MLP, which this layer replaces.
  return residual_add(branch, residual, context, static_cast<uint64_t>(2 * layer_ + 1));
}

at::Tensor ExpertLayer::add_shared(const at::Tensor& routed, const at::Tensor& x) const {
  if (shared_gate_up_ == nullptr) return routed;
  const at::Tensor shared = linear(swiglu(linear(x, *shared_gate_up_)), *shared_down_);
  if (shared_gate_ != nullptr) return add_gated(routed, shared, x, *shared_gate_);
  return routed.add(shared);
}

}  // namespace stepforge
