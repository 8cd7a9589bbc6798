// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/expert_blocks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"

namespace stepforge {

std::vector<int> add_units(ModelSpec& spec, const std::string& name, const std::vector<LayerSpec*>& layers) {
  std::vector<int> units;
  for (const UnitMesh mesh : {UnitMesh::rows, UnitMesh::slices}) {
    if (std::ranges::none_of(layers, [&](const LayerSpec* layer) { return layer->mesh == mesh; })) continue;
    // Beside the unit of attention.
    UnitSpec unit{.name = units.empty() ? name : name + ".mlp", .parameters = {}, .mesh = mesh};
    for (LayerSpec* layer : layers)
      if (layer->mesh == mesh) std::ranges::move(layer->parameters, std::back_inserter(unit.parameters));
    units.push_back(static_cast<int>(spec.units.size()));
    spec.units.push_back(std::move(unit));
  }
  return units;
}

void add_lists(BlockSpec& block, LayerSpec layer) {
  const auto add = [](CallList& list, CallList next) {
    list = list.empty() ? std::move(next) : joined(std::move(list), next);
  };
  add(block.list, std::move(layer.list));
  add(block.generation, std::move(layer.generation));
}

void add_expert_blocks(ModelSpec& spec, const BundleEntry& hidden, int layer, LayerSpec attention,
                       ExpertParts parts, const ExpertDims& dims, const ExpertParallel& parallel) {
  const std::string name = format("layers.{}", layer);
  const ExpertValues values(hidden, dims.chosen);
  const int64_t rows = parallel.rows_per_token(dims.experts, dims.chosen);
  const std::vector<int> units = add_units(spec, name, {&attention, &parts.router, &parts.shared});
  const auto unit_of_experts = static_cast<int>(spec.units.size());
  spec.units.push_back({.name = name + ".experts",
                        .parameters = std::move(parts.experts.parameters),
                        .mesh = UnitMesh::experts});

  const auto add = [&](LayerPart part, std::vector<int> units, std::vector<BundleEntry> inputs,
                       std::vector<BundleEntry> outputs, LayerSpec calls) -> BlockSpec& {
    BlockSpec& block = spec.blocks.emplace_back(
        layer_part(layer, part, std::move(units), std::move(inputs), std::move(outputs)));
    add_lists(block, std::move(calls));
    return block;
  };
  BlockSpec& router = add(LayerPart::router, units, {hidden},
                          {hidden, values.tokens, values.weights, values.experts}, std::move(attention));
  add_lists(router, std::move(parts.router));
  std::vector<BundleEntry> joined = {hidden, values.combined()};
  if (dims.shared_hidden > 0) {
    std::vector<BundleEntry> made = {{"shared", hidden.width, hidden.slice}};
    if (dims.shared_gate)
      made.push_back({.name = "gate", .width = 1, .slice = hidden.slice, .dtype = DType::f32});
    std::ranges::copy(made, std::back_inserter(joined));
    add(LayerPart::shared, {units.back()}, {values.tokens}, std::move(made), std::move(parts.shared));
  }
  add(LayerPart::experts, {unit_of_experts}, values.inputs(rows), {values.results(rows)},
      std::move(parts.experts))
      .dispatch = values.dispatch(dims.experts, parallel);
  add(LayerPart::join, {}, std::move(joined), {hidden}, std::move(parts.join));
}

}  // namespace stepforge
