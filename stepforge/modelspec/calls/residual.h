// SPDX-License-Identifier: Apache-2.0
// residual_add(branch, x) -> x + dropout(branch): kernels/dropout_add.h; add(a, b) -> a + b; gated_add(a, b, gate) -> a +
// sigmoid(gate) * b: kernels/gated_add.h. In place on the first operand.
#pragma once

#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct ResidualAttributes {
  uint64_t site = 0;  ///< the number of the dropout in the model
  bool dropout = false;
};

inline constexpr CallKind kResidualAdd = {
    .name = "residual_add",
    .results =
        [](const CallView& view) {
          require_width(view, 1, view.operands[0].width);
          return std::vector<LayerValue>{view.operands[0]};
        },
    .overwrites = [](const CallView&) { return 0; },
    .passes_gradient =
        [](const CallView& view) { return view.attributes<ResidualAttributes>().dropout ? 2U : 3U; },
    .text =
        [](const CallView& view) {
          return std::string(view.attributes<ResidualAttributes>().dropout ? "dropout" : "");
        },
};

inline constexpr CallKind kAdd = {
    .name = "add",
    .results =
        [](const CallView& view) {
          require_width(view, 1, view.operands[0].width);
          return std::vector<LayerValue>{view.operands[0]};
        },
    .overwrites = [](const CallView&) { return 0; },
    .passes_gradient = [](const CallView&) { return 3U; },
};

inline constexpr CallKind kGatedAdd = {
    .name = "gated_add",
    .results =
        [](const CallView& view) {
          require_width(view, 1, view.operands[0].width);
          require_width(view, 2, 1);
          return std::vector<LayerValue>{view.operands[0]};
        },
    .derivative_reads = [](const CallView&) { return CallValues{.operands = 6}; },
    .overwrites = [](const CallView&) { return 0; },
    .passes_gradient = [](const CallView&) { return 1U; },
};

}  // namespace stepforge
