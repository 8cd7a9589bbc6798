// SPDX-License-Identifier: Apache-2.0
// swiglu(gate_up) -> activation(gate) * up: kernels/swiglu.h.
#pragma once

#include "stepforge/modelspec/calls/workspaces.h"
#include "stepforge/modelspec/layer_traits.h"

namespace stepforge {

struct SwigluAttributes {
  Activation activation = Activation::silu;
};

inline constexpr CallRow kSwigluRow = {
    .kind = CallKind::swiglu,
    .name = "swiglu",
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.width /= 2;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads = [](const CallView&) { return CallValues{.operands = 1}; },
    .text =
        [](const CallView& view) {
          return std::string(
              view.attributes<SwigluAttributes>().activation == Activation::silu ? "silu" : "gelu_tanh");
        },
};

}  // namespace stepforge
