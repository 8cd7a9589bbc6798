// SPDX-License-Identifier: Apache-2.0
// rms_norm(x; weight) -> normed, rstd: kernels/rms_norm.h.
#pragma once

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct NormAttributes {
  double eps = 1e-6;
  double offset = 0.0;  ///< added to the weight: 1 in Gemma
};

inline constexpr CallKind kRmsNorm = {
    .name = "rms_norm",
    .results =
        [](const CallView& view) {
          LayerValue normed = view.operands[0];
          require_elements(view, 0, normed.width);
          LayerValue rstd = normed;
          rstd.width = 1;
          rstd.type = ElementType::fp32;
          rstd.differentiable = false;
          return std::vector<LayerValue>{normed, rstd};
        },
    .derivative_reads = [](const CallView&) { return CallValues{.operands = 1, .results = 2}; },
    .gradient_overwrites = 0,
    .adds_gradient = [](const CallView&) { return true; },
    .workspace =
        [](const CallView& view) {
          const int64_t width = view.operands[0].width;
          CallWorkspace made = vector_gradient(width, partial_sums(width));
          if (view.attributes<NormAttributes>().offset != 0.0)  // offset and weight are added while it runs
            made.forward.fixed_fp32 = made.backward.fixed_fp32 = width;
          return made;
        },
    .exchanges = weight_sums,
    .text =
        [](const CallView& view) {
          const auto& norm = view.attributes<NormAttributes>();
          return format("eps {}{}", norm.eps, norm.offset == 0.0 ? "" : format(", offset {}", norm.offset));
        },
};

}  // namespace stepforge
