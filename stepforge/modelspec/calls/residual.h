// SPDX-License-Identifier: Apache-2.0
// residual_add(branch, x) -> x + dropout(branch): kernels/dropout_add.h. In place on the branch.
#pragma once

#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct ResidualAttributes {
  uint64_t site = 0;  ///< the number of the dropout in the model
  bool dropout = false;
};

inline constexpr CallRow kResidualAddRow = {
    .kind = CallKind::residual_add,
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

}  // namespace stepforge
