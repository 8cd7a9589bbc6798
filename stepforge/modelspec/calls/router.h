// SPDX-License-Identifier: Apache-2.0
// route(x; router, bias, correction) -> weights, experts, logits: the experts of each token and their weights (kernels/router.h);
// wide_linear(x; weight) -> x weight^T in fp32, whatever the type of x: gates.
#pragma once

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"
#include "stepforge/modelspec/router_options.h"

namespace stepforge {

struct RouteAttributes {
  RouterSettings settings;
  int64_t layer = 0;
  bool biased = false;     ///< the second weight is a bias of the logits
  bool corrected = false;  ///< the last weight corrects the choice, and is no parameter
};

namespace router_row {

/// The gradients of logits, and of their bias.
inline CallWorkspace workspace(const CallView& view) {
  const std::vector<CallWeight>& weights = view.call.weights;
  const int64_t experts = weights[0].shape[0];
  CallWorkspace made;
  made.backward.token = for_rows_of(view.operands[0], {0, experts});
  if (view.attributes<RouteAttributes>().biased && weights[1].trained) made.backward.fixed_fp32 = experts;
  made.weights = made.backward;
  made.queued.fixed_fp32 = made.backward.fixed_fp32;
  if (weights[0].trained) made.queued.token = made.backward.token;
  return made;
}

inline double wide_flops(const CallView& view) {
  return 2.0 * static_cast<double>(view.call.weights[0].elements());
}

}  // namespace router_row

inline constexpr CallKind kRoute = {
    .name = "route",
    .results =
        [](const CallView& view) {
          require_width(view, 0, view.call.weights.at(0).shape.at(1));
          const RouterOptions& options = view.attributes<RouteAttributes>().settings.options;
          check_router(options, view.call.weights[0].shape[0]);
          const int64_t chosen = options.chosen;
          LayerValue weights = view.operands[0];
          weights.width = chosen;
          weights.type = ElementType::fp32;
          return std::vector<LayerValue>{weights, beside(weights, chosen, ElementType::int32),
                                         beside(weights, view.call.weights[0].shape[0], ElementType::fp32)};
        },
    .derivative_reads =
        [](const CallView& view) {
          return CallValues{.operands = view.call.weights[0].trained ? 1U : 0U, .results = 6};
        },
    .queued_operands = [](const CallView& view) { return view.call.weights[0].trained ? 1U : 0U; },
    .queues_gradient = [](const CallView&) { return false; },
    .flops = router_row::wide_flops,
    .workspace = router_row::workspace,
    .text =
        [](const CallView& view) {
          const RouterOptions& options = view.attributes<RouteAttributes>().settings.options;
          std::string text = format("{} of {} experts, {}", options.chosen, view.call.weights[0].shape[0],
                                    options.score == RouterScore::softmax ? "softmax" : "sigmoid");
          if (options.groups > 1) text += format(", {} of {} groups", options.chosen_groups, options.groups);
          return text;
        },
};

inline constexpr CallKind kWideLinear = {
    .name = "wide_linear",
    .results =
        [](const CallView& view) {
          require_width(view, 0, view.call.weights.at(0).shape.at(1));
          LayerValue made = view.operands[0];
          made.width = view.call.weights[0].shape[0];
          made.type = ElementType::fp32;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) { return CallValues{.operands = view.call.trains() ? 1U : 0U}; },
    .queued_operands = [](const CallView&) { return 1U; },
    .queues_gradient = [](const CallView&) { return true; },
    .flops = router_row::wide_flops,
};

}  // namespace stepforge
