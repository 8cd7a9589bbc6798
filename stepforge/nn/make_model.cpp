// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/make_model.h"

#include <memory>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/nn/list_head.h"

namespace stepforge {

namespace {

std::shared_ptr<const LayerResources> layer_resources(const ModelSpec& spec, const ForwardOptions& options) {
  const int64_t row_length = options.row_length > 0 ? options.row_length : options.context_length;
  const auto table = [&](const RopeSpec& rope) {
    return std::make_shared<const RopeTable>(make_rope_table(options.context_length, rope.size, rope.theta,
                                                             rope.scaling_of(row_length), options.device));
  };
  LayerResources made{
      .tensor = options.tensor, .exchange = options.exchange, .loss = options.loss, .entry = options.entry};
  made.rope = table(spec.rope);
  made.local_rope = spec.local_rope.size > 0 ? table(spec.local_rope) : made.rope;
  return std::make_shared<const LayerResources>(std::move(made));
}

}  // namespace

Model make_model(const ModelSpec& spec, const ParameterLookup& parameters, const ForwardOptions& options) {
  const auto resources = layer_resources(spec, options);
  Model model;
  for (const BlockSpec& block : spec.blocks) {
    if (block.list.empty() || block.uses_autograd())
      throw Error(
          format("{}: its list of calls only states what a block of your own computes; replace the build "
                 "step \"model\" and make that block there",
                 block.name));
    if (block.kind == BlockKind::head)
      model.heads.push_back(std::make_unique<ListHead>(block.list, block.generation, parameters, resources));
    else
      model.blocks.push_back(
          std::make_unique<ListBlock>(block.list, block.generation, parameters, resources));
  }
  return model;
}

}  // namespace stepforge
