// SPDX-License-Identifier: Apache-2.0
// swiglu(gate_up) -> activation(gate) * up, and swiglu(gate_up, weights, slots), each row times the weight of its slot:
// kernels/swiglu.h.
#pragma once

#include <optional>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"
#include "stepforge/modelspec/layer_traits.h"

namespace stepforge {

struct SwigluAttributes {
  Activation activation = Activation::silu;
  std::optional<ClampedSwiglu> clamped = {};  ///< of rows with weights
};

inline constexpr CallKind kSwiglu = {
    .name = "swiglu",
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.width /= 2;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) { return CallValues{.operands = (1U << view.operands.size()) - 1}; },
    .text =
        [](const CallView& view) {
          const auto& attributes = view.attributes<SwigluAttributes>();
          if (attributes.clamped) return format("silu, limit {}", attributes.clamped->limit);
          return std::string(attributes.activation == Activation::silu ? "silu" : "gelu_tanh");
        },
};

}  // namespace stepforge
