// SPDX-License-Identifier: Apache-2.0
// score(x; weight) -> -x weight^T in fp32, one number for each token: what a reward model says of the text up to it. It has
// the place of a loss in a head, and its sign: as a loss is minus a log-probability, it is minus the score.
#pragma once

#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

/// Tokens that it widens to fp32 at once.
inline constexpr int64_t kScoreTokens = cpu::kBf16ProductTokens;

inline constexpr CallKind kScore = {
    .name = "score",
    .rule = TypeRule::loss,
    .results =
        [](const CallView& view) {
          require_width(view, 0, view.call.weights.at(0).shape.at(1));
          LayerValue made = view.operands[0];
          made.name = "";
          made.width = 1;
          made.type = ElementType::fp32;
          return std::vector<LayerValue>{made};
        },
    .derivative_reads =
        [](const CallView& view) {
          return CallValues{.operands = view.call.trains() ? 1U : 0U, .results = 1};
        },
    .flops = [](const CallView& view) { return 2.0 * static_cast<double>(view.call.weights[0].elements()); },
    .workspace =
        [](const CallView& view) {
          const int64_t width = view.call.weights[0].shape[1];
          CallWorkspace made;
          made.forward.narrow_token = 2 * width;  // fp32 in elements of bf16
          made.backward.narrow_token = 2 * width;
          made.backward.token.fp32 = 1;  // what each token weighs
          return made;
        },
};

}  // namespace stepforge
