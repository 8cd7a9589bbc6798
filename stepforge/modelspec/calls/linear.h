// SPDX-License-Identifier: Apache-2.0
// linear(x; weight) -> x weight^T, and bias(x; bias) -> x + bias of each row.
#pragma once

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

/// With asynchronous tensor parallelism (TensorParallel::async) slices of the tokens pass beside the product.
struct LinearAttributes {
  int slices = 1;                ///< ranks that have a slice each
  bool gathers_input = false;    ///< x is a slice, the result is of all tokens
  bool scatters_result = false;  ///< the result is the sum over the ranks, of this rank's slice
};

inline LinearAttributes linear_attributes(const Call& call) {
  const auto* given = std::any_cast<LinearAttributes>(&call.attributes);
  return given != nullptr ? *given : LinearAttributes();
}

namespace linear_row {

/// Each slice goes to every other rank.
inline Exchange beside(const CallView& view, ExchangeKind kind, int64_t width) {
  return {.axis = BlockAxis::tensor,
          .kind = kind,
          .elements = {.slice_compute = (linear_attributes(view.call).slices - 1) * width},
          .beside = true};
}

inline CallWorkspace workspace(const CallView& view) {
  const LinearAttributes attributes = linear_attributes(view.call);
  const int64_t in = view.call.weights[0].shape[1];
  const int64_t out = view.call.weights[0].shape[0];
  const bool trained = view.call.trains();
  // Shares on their way to other ranks, and theirs for this one.
  const auto shares = [&](int64_t width) {
    return Elements{.slice_compute = int64_t{2} * (attributes.slices - 1) * width};
  };
  CallWorkspace made;
  made.forward.narrow = bf16_product(in, out);
  made.backward.narrow = bf16_product(out, in);
  if (trained) made.weights.narrow_token = bf16_product(1, in);
  if (attributes.gathers_input) {
    made.forward.token.compute = in;
    made.backward.token = shares(in);
    if (trained) made.weights.token.compute = in;  // all tokens
    made.beside = true;
  }
  if (attributes.scatters_result) {
    made.forward.token = shares(out);
    (trained ? made.weights : made.backward).token.compute = out;  // the gradient of all tokens
    made.beside = true;
  }
  made.queued.token = made.weights.token;
  if (trained && view.call.sums_weight_gradients) {
    made.weights.fixed_fp32 = view.call.weights[0].elements();
    made.queued.fixed_fp32 = made.weights.fixed_fp32;
  }
  return made;
}

inline CallExchanges exchanges(const CallView& view) {
  const LinearAttributes attributes = linear_attributes(view.call);
  const int64_t in = view.call.weights[0].shape[1];
  const int64_t out = view.call.weights[0].shape[0];
  CallExchanges made = weight_sums(view);
  if (attributes.gathers_input) {
    made.forward = {beside(view, ExchangeKind::gather, in)};
    made.backward = {beside(view, ExchangeKind::sum_slice, in)};
    if (view.call.trains()) made.backward.push_back(beside(view, ExchangeKind::gather, in));
  }
  if (attributes.scatters_result) {
    made.forward.push_back(beside(view, ExchangeKind::sum_slice, out));
    made.backward.push_back(beside(view, ExchangeKind::gather, out));
  }
  return made;
}

}  // namespace linear_row

inline constexpr CallKind kLinear = {
    .name = "linear",
    .rule = TypeRule::linear,
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          require_width(view, 0, view.call.weights.at(0).shape.at(1));
          made.width = view.call.weights[0].shape[0];
          const LinearAttributes attributes = linear_attributes(view.call);
          if (attributes.gathers_input) made.rows = Rows::tokens;
          if (attributes.scatters_result) made.rows = Rows::slice;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) { return CallValues{.operands = view.call.trains() ? 1U : 0U}; },
    .adds_gradient =
        [](const CallView& view) {
          const LinearAttributes attributes = linear_attributes(view.call);
          return !attributes.gathers_input && !attributes.scatters_result;
        },
    .queued_operands =
        [](const CallView& view) {
          return linear_attributes(view.call).gathers_input || view.call.sums_weight_gradients ? 0U : 1U;
        },
    .queues_gradient =
        [](const CallView& view) {
          return !linear_attributes(view.call).scatters_result && !view.call.sums_weight_gradients;
        },
    .flops = [](const CallView& view) { return 2.0 * static_cast<double>(view.call.weights[0].elements()); },
    .workspace = linear_row::workspace,
    .exchanges = linear_row::exchanges,
};

/// Adds in place. Its weights together have an element for each column, in their order.
inline constexpr CallKind kBias = {
    .name = "bias",
    .results =
        [](const CallView& view) {
          int64_t elements = 0;
          for (const CallWeight& weight : view.call.weights) elements += weight.elements();
          if (elements != view.operands[0].width)
            throw Error(format("{} (bias): {} elements for {} columns", view.call.name, elements,
                               view.operands[0].width));
          return std::vector<LayerValue>{view.operands[0]};
        },
    .overwrites = [](const CallView&) { return 0; },
    .passes_gradient = [](const CallView&) { return 1U; },
    .workspace =
        [](const CallView& view) {
          const int64_t width = view.operands[0].width;
          return vector_gradient(width, partial_sums(width));
        },
    .exchanges = weight_sums,
};

}  // namespace stepforge
