// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/nn/expert_functions.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/router_step.h"
#include "stepforge/nn/wide_linear.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RouteArguments {
  Parameter* weight;
  const at::Tensor& correction;
  const RouterSettings* settings;
  int64_t layer;
  const Context& context;
  Parameter* bias;
};

/// Makes the report of the layer's first forward, the sums of which `row_sums` are.
void report(const RouteArguments& arguments, const at::Tensor& indices, const at::Tensor& row_sums) {
  RouterStep& step = *arguments.context.routers;
  const at::Tensor losses = at::empty({2}, row_sums.options());
  router_losses(row_sums, arguments.settings->options, losses);
  const int64_t experts = arguments.weight->value().size(0);
  step.report(arguments.layer,
              {row_sums, losses, count_tokens(indices, step.token_weights(), experts), arguments.layer});
}

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const RouteArguments* arguments) {
    const RouterSettings& settings = *arguments->settings;
    const at::Tensor logits = wide_product(x, weight);
    if (arguments->bias != nullptr) bias_forward(logits, widen(arguments->bias->value()));
    const at::Tensor indices = at::empty({x.size(0), settings.options.chosen}, x.options().dtype(at::kInt));
    at::Tensor weights = at::empty(indices.sizes(), logits.options());
    const RouterStep* step = arguments->context.routers;
    const bool first = step != nullptr && !step->has_report(arguments->layer);
    const at::Tensor row_sums =
        first ? at::empty({step->rows(), router_columns(logits.size(1))}, logits.options().dtype(at::kDouble))
              : at::Tensor();
    router_forward(logits, arguments->correction, first ? step->token_weights() : at::Tensor(),
                   settings.options, indices, weights, row_sums);
    if (first) report(*arguments, indices, row_sums);
    ctx->save_for_backward({arguments->weight->trained() ? x : at::Tensor(), logits, indices});
    ctx->mark_non_differentiable({indices});
    save_pointer(*ctx, "weight", arguments->weight);
    save_pointer(*ctx, "bias", arguments->bias);
    save_pointer(*ctx, "settings", &settings);
    save_pointer(*ctx, "step", step);
    ctx->saved_data["layer"] = arguments->layer;
    return {weights, indices};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    auto& weight = *saved_pointer<Parameter>(*ctx, "weight");
    const auto& settings = *saved_pointer<RouterSettings>(*ctx, "settings");
    const auto* step = saved_pointer<RouterStep>(*ctx, "step");
    at::Tensor counted;
    at::Tensor row_sums;
    RouterLossGradient losses;
    if (step != nullptr && settings.changes_gradients()) {
      counted = step->token_weights();
      row_sums = step->report_of(ctx->saved_data.at("layer").toInt()).row_sums;
      losses = {settings.balance_weight, settings.z_weight, step->scale()};
    }
    const at::Tensor gradient = at::empty_like(saved[1]);
    router_backward(gradients[0], saved[1], saved[2], counted, row_sums, settings.options, losses, gradient);
    if (weight.trained()) add_wide_product(weight, gradient, saved[0]);
    if (auto* bias = saved_pointer<Parameter>(*ctx, "bias"); bias != nullptr && bias->trained()) {
      const at::Tensor bias_gradient = at::empty({gradient.size(1)}, gradient.options());
      bias_backward(gradient, bias_gradient);
      bias->add_gradient(bias_gradient);
    }
    at::Tensor x_gradient;
    if (ctx->needs_input_grad(0)) x_gradient = wide_input_gradient(gradient, weight.value());
    return {x_gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RouterStep::RouterStep(at::Tensor scale, const BatchTensors& batch,
                       std::function<void(const RouterReport&)> on_report, const TensorParallel& tensor)
    : scale_(std::move(scale)), on_report_(std::move(on_report)) {
  const int64_t tokens = batch.token_count();
  const ShardRange own = tensor.sequence ? tensor.part_of(tokens) : ShardRange{0, tokens};
  // Slices begin at multiples of their length, so no such part is of two rows.
  rows_ = own.size() / std::gcd(own.size(), batch.host.seq_len);
  const at::Tensor labels = batch.labels.slice(0, own.begin, own.end);
  token_weights_ = batch.weights.defined() ? batch.weights.slice(0, own.begin, own.end)
                                           : labels.ne(kIgnoredLabel).to(at::kFloat);
}

RoutedTokens route(const at::Tensor& x, Parameter& weight, const at::Tensor& correction,
                   const RouterSettings& settings, int64_t layer, const Context& context, Parameter* bias) {
  if (settings.changes_gradients() && context.routers == nullptr && at::GradMode::is_enabled()) {
    throw Error(format(
        "the router of layer {} has losses, so a forward with gradients needs Context::routers", layer));
  }
  const RouteArguments arguments{&weight, correction, &settings, layer, context, bias};
  auto results = RouteFunction::apply(x, weight.value(), &arguments);
  return {results[0], results[1]};
}

}  // namespace stepforge
