// SPDX-License-Identifier: Apache-2.0
// split(x) -> first, second: columns of x; concat(a, b) -> [a | b].
#pragma once

#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct SplitAttributes {
  int64_t first = 0;  ///< columns of the first result
};

inline constexpr CallKind kSplit = {
    .name = "split",
    .results =
        [](const CallView& view) {
          LayerValue first = view.operands[0];
          first.width = view.attributes<SplitAttributes>().first;
          LayerValue second = view.operands[0];
          second.width -= first.width;
          return std::vector<LayerValue>{first, second};
        },
};

inline constexpr CallKind kConcat = {
    .name = "concat",
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          made.width += view.operands[1].width;
          return std::vector<LayerValue>{made};
        },
};

}  // namespace stepforge
