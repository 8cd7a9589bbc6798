// SPDX-License-Identifier: Apache-2.0
// lookup(; table) -> rows of the table times a factor, of the tokens of the batch (kernels/embedding.h).
#pragma once

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct LookupAttributes {
  double factor = 1.0;
  int64_t ahead = 0;  ///< of tokens so much further ahead, of which only training has values
};

inline constexpr CallKind kLookup = {
    .name = "lookup",
    .rule = TypeRule::lookup,
    .results =
        [](const CallView& view) {
          return std::vector<LayerValue>{
              LayerValue{.name = "", .width = view.call.weights.at(0).shape.at(1)}};
        },
    .queued_operands = [](const CallView&) { return 0U; },
    .queues_gradient = [](const CallView&) { return true; },
    .workspace =
        [](const CallView&) {
          CallWorkspace made;
          made.queued.token.fp32 = 1;  // the tokens
          return made;
        },
    .text =
        [](const CallView& view) {
          const int64_t ahead = view.attributes<LookupAttributes>().ahead;
          return ahead == 0 ? std::string() : format("{} ahead", ahead);
        },
};

}  // namespace stepforge
