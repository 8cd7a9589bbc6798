// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/router.h"

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/router.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/router_step.h"
#include "stepforge/nn/wide_linear.h"

namespace stepforge {

namespace {

at::Tensor correction_of(const CallRun& run) {
  return attributes_of<RouteAttributes>(run.call).corrected ? run.weights.back()->value() : at::Tensor();
}

/// Makes the report of the layer's first forward, the sums of which `row_sums` are.
void report(const CallRun& run, const at::Tensor& row_sums) {
  const auto& route = attributes_of<RouteAttributes>(run.call);
  RouterStep& step = *run.context.routers;
  const at::Tensor losses = at::empty({2}, row_sums.options());
  router_losses(row_sums, route.settings.options, losses);
  const int64_t experts = run.weight(0).value().size(0);
  step.report(route.layer,
              {row_sums, losses, count_tokens(run.written[1], step.token_weights(), experts), route.layer});
}

void route(const CallRun& run) {
  const auto& route = attributes_of<RouteAttributes>(run.call);
  const RouterStep* step = run.context.routers;
  if (run.trains && route.settings.changes_gradients() && step == nullptr)
    throw Error(
        format("the router of layer {} has losses, so a forward with gradients needs Context::routers",
               route.layer));
  const at::Tensor logits = run.written[2];
  wide_product(run.operands[0], run.weight(0).value(), logits);
  if (route.biased) bias_forward(logits, widen(run.weight(1).value()));
  const bool first = step != nullptr && !step->has_report(route.layer);
  const at::Tensor row_sums =
      first ? at::empty({step->rows(), router_columns(logits.size(1))}, logits.options().dtype(at::kDouble))
            : at::Tensor();
  router_forward(logits, correction_of(run), first ? step->token_weights() : at::Tensor(),
                 route.settings.options, run.written[1], run.written[0], row_sums);
  if (first) report(run, row_sums);
}

void route_backward(const CallRun& run) {
  const auto& route = attributes_of<RouteAttributes>(run.call);
  const RouterStep* step = run.context.routers;
  at::Tensor counted;
  at::Tensor row_sums;
  RouterLossGradient losses;
  if (step != nullptr && route.settings.changes_gradients()) {
    counted = step->token_weights();
    row_sums = step->report_of(route.layer).row_sums;
    losses = {route.settings.balance_weight, route.settings.z_weight, step->scale()};
  }
  const at::Tensor& logits = run.results[2];
  const at::Tensor gradient = at::empty_like(logits);
  router_backward(run.gradients[0], logits, run.results[1], counted, row_sums, route.settings.options, losses,
                  gradient);
  at::Tensor of_bias;
  if (route.biased && run.weight(1).trained()) {
    of_bias = at::empty({gradient.size(1)}, gradient.options());
    stepforge::bias_backward(gradient, of_bias);
    run.weight(1).add_gradient(of_bias);
  }
  if (run.weight(0).trained()) add_wide_product(run.weight(0), gradient, run.operands[0]);
  if (run.written.wanted(0)) wide_input_gradient(gradient, run.weight(0).value(), run.written[0]);
}

void wide_linear(const CallRun& run) {
  wide_product(run.operands[0], run.weight(0).value(), run.written[0]);
}

void wide_linear_backward(const CallRun& run) {
  if (run.weight(0).trained()) add_wide_product(run.weight(0), run.gradients[0], run.operands[0]);
  if (run.written.wanted(0)) wide_input_gradient(run.gradients[0], run.weight(0).value(), run.written[0]);
}

}  // namespace

extern const CallEntry kWideLinearEntry = {&kWideLinear, wide_linear, wide_linear_backward};
extern const CallEntry kRouteEntry = {&kRoute, route, route_backward};

}  // namespace stepforge
