// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/expert_layer.h"

#include <utility>

#include "stepforge/nn/functions.h"

namespace stepforge {

ExpertRouter::ExpertRouter(const ParameterLookup& parameters, const std::string& prefix,
                           const RouterSettings& settings, double eps, int64_t layer, at::Tensor correction)
    : norm_(parameters(prefix + ".norm")),
      router_(parameters(prefix + ".router")),
      bias_(settings.biased ? &parameters(prefix + ".router_bias") : nullptr),
      settings_(settings),
      eps_(eps),
      layer_(layer),
      correction_(std::move(correction)) {
  check_router(settings_.options, router_.spec().shape.at(0));
}

ExpertTokens ExpertRouter::forward(const at::Tensor& x, const Context& context) {
  auto [normed, residual] = pre_norm(x, norm_, {.eps = eps_});
  RoutedTokens routed = route(normed, router_, correction_, settings_, layer_, context, bias_);
  return {std::move(residual), std::move(normed), std::move(routed)};
}

ExpertFunction swiglu_experts(const ParameterLookup& parameters, const std::string& prefix) {
  Parameter& gate_up = parameters(prefix + ".expert_gate_up");
  Parameter& down = parameters(prefix + ".expert_down");
  return [&gate_up, &down](const at::Tensor& tokens, const RoutedTokens& routed) {
    return run_experts(tokens, routed, down.value().size(0) / tokens.size(1), gate_up, down);
  };
}

SharedExpert::SharedExpert(const ParameterLookup& parameters, const std::string& prefix, bool gated)
    : gate_up_(parameters(prefix + ".shared_gate_up")),
      down_(parameters(prefix + ".shared_down")),
      gate_(gated ? &parameters(prefix + ".shared_gate") : nullptr) {}

SharedResult SharedExpert::forward(const at::Tensor& tokens) {
  at::Tensor gate = gate_ == nullptr ? at::Tensor() : gate_of(tokens, *gate_);
  return {linear(swiglu(linear(tokens, gate_up_)), down_), std::move(gate)};
}

at::Tensor join_experts(const at::Tensor& results, const SharedResult& shared, const at::Tensor& residual,
                        int64_t layer, const Context& context, const TensorExchange& tensor) {
  const auto site = static_cast<uint64_t>(2 * layer + 1);  // that of an MLP, which the layer replaces
  if (!shared.result.defined()) return residual_sum(results, residual, context, site, tensor);
  const at::Tensor branch =
      shared.gate.defined() ? add_gated(results, shared.result, shared.gate) : results.add(shared.result);
  return residual_add(branch, residual, context, site, tensor);
}

ExpertLayer::ExpertLayer(const ParameterLookup& parameters, const std::string& prefix,
                         const RouterSettings& router, ExpertFunction experts, Shared shared, double eps,
                         int64_t layer, at::Tensor correction, TensorExchange tensor)
    : router_(parameters, prefix, router, eps, layer, std::move(correction)),
      experts_(std::move(experts)),
      layer_(layer),
      tensor_(std::move(tensor)) {
  if (shared != Shared::none) shared_.emplace(parameters, prefix, shared == Shared::gated);
}

at::Tensor ExpertLayer::forward(const at::Tensor& x, const Context& context) {
  const ExpertTokens in = router_.forward(x, context);
  const at::Tensor results = experts_(in.tokens, in.routed);
  const SharedResult shared = shared_ ? shared_->forward(in.tokens) : SharedResult();
  return join_experts(results, shared, in.residual, layer_, context, tensor_);
}

}  // namespace stepforge
