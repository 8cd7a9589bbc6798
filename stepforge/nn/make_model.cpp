// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/make_model.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/nn/list_head.h"

namespace stepforge {

Model make_model(const std::vector<BlockSpec>& blocks, const ParameterLookup& parameters,
                 const std::shared_ptr<const LayerResources>& resources) {
  Model model;
  for (const BlockSpec& block : blocks) {
    const CallList calls = block.calls();
    if (calls.empty()) throw Error(format("{}: the block has no list of calls", block.name));
    if (block.kind == BlockKind::head)
      model.heads.push_back(std::make_unique<ListHead>(calls, block.generation(), parameters, resources));
    else
      model.blocks.push_back(std::make_unique<ListBlock>(calls, block.generation(), parameters, resources));
  }
  return model;
}

}  // namespace stepforge
