// SPDX-License-Identifier: Apache-2.0
// latent_heads(q, up, rotated) -> qkv: the heads of multi-head latent attention, with the rotary embedding of the last elements
// of queries and keys (kernels/latent_heads.h).
#pragma once

#include "stepforge/modelspec/attention_shape.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct LatentHeadsAttributes {
  AttentionShape shape;
  int64_t rotated =
      0;  ///< elements of a head that know their position; those of a key are the same in all heads
};

inline constexpr CallKind kLatentHeads = {
    .name = "latent_heads",
    .results =
        [](const CallView& view) {
          const auto& [shape, rotated] = view.attributes<LatentHeadsAttributes>();
          require_width(view, 0, shape.q_width());
          require_width(view, 1, shape.heads * (shape.head_dim - rotated + shape.value_size()));
          require_width(view, 2, rotated);
          LayerValue made = view.operands[0];
          made.width = shape.qkv_width();
          return std::vector<LayerValue>{made};
        },
};

}  // namespace stepforge
