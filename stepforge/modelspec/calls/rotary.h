// SPDX-License-Identifier: Apache-2.0
// rotary(qkv; q_norm, k_norm) -> qkv, rstd: the rotary embedding of packed queries and keys, after an optional norm of them
// (kernels/rope.h). In place, unless backward reads qkv.
#pragma once

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/attention_shape.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct RotaryAttributes {
  AttentionShape shape;
  double eps = 1e-6;  ///< of the norms
  double offset = 0.0;
  bool local = false;  ///< by the table of layers with a window
};

namespace rotary_row {

inline bool normed(const CallView& view) {
  return !view.call.weights.empty();
}

/// Heads that are normed together.
inline int64_t span(const CallView& view, std::size_t weight) {
  return view.call.weights.at(weight).elements() / view.attributes<RotaryAttributes>().shape.head_dim;
}

}  // namespace rotary_row

inline constexpr CallKind kRotary = {
    .name = "rotary",
    .results =
        [](const CallView& view) {
          const AttentionShape& shape = view.attributes<RotaryAttributes>().shape;
          require_width(view, 0, shape.qkv_width());
          std::vector<LayerValue> made = {view.operands[0]};
          if (!rotary_row::normed(view)) return made;
          LayerValue rstd = view.operands[0];
          rstd.width = shape.heads / rotary_row::span(view, 0) + shape.kv_heads / rotary_row::span(view, 1);
          rstd.type = ElementType::fp32;
          rstd.differentiable = false;
          made.push_back(rstd);
          return made;
        },
    .derivative_reads =
        [](const CallView& view) {
          return rotary_row::normed(view) ? CallValues{.operands = 1, .results = 2} : CallValues();
        },
    .overwrites = [](const CallView&) { return 0; },
    .gradient_overwrites = 0,
    .workspace =
        [](const CallView& view) {
          if (!rotary_row::normed(view)) return CallWorkspace();
          const auto& attributes = view.attributes<RotaryAttributes>();
          const int64_t q = view.call.weights[0].elements();
          const int64_t k = view.call.weights[1].elements();
          CallWorkspace made = vector_gradient(q + k, partial_sums(q + k + std::max(q, k)));
          if (attributes.offset != 0.0) made.forward.fixed_fp32 = made.backward.fixed_fp32 = q + k;
          return made;
        },
    .exchanges = weight_sums,
    .text =
        [](const CallView& view) {
          return std::string(view.attributes<RotaryAttributes>().local ? "local positions" : "");
        },
};

}  // namespace stepforge
