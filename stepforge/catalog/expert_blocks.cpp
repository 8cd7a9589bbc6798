// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/expert_blocks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"

namespace stepforge {

void add_expert_blocks(ModelSpec& spec, const BundleEntry& hidden, int layer, LayerSpec attention,
                       ExpertParts parts, const ExpertDims& dims, const ExpertParallel& parallel) {
  const std::string name = format("layers.{}", layer);
  const ExpertValues values(hidden, dims.chosen);
  const int64_t rows = parallel.rows_per_token(dims.experts, dims.chosen);
  const auto unit = static_cast<int>(spec.units.size());
  UnitSpec trained{.name = name, .parameters = std::move(attention.parameters)};
  for (LayerSpec* part : {&parts.router, &parts.shared})
    std::ranges::move(part->parameters, std::back_inserter(trained.parameters));
  spec.units.push_back(std::move(trained));
  spec.units.push_back(
      {.name = name + ".experts", .parameters = std::move(parts.experts.parameters), .experts = true});

  const auto add = [&](LayerPart part, std::vector<int> units, std::vector<BundleEntry> inputs,
                       std::vector<BundleEntry> outputs, std::vector<RegionSpec> regions) -> BlockSpec& {
    return spec.blocks.emplace_back(
        layer_part(layer, part, std::move(units), std::move(inputs), std::move(outputs), std::move(regions)));
  };
  // Norm and router keep what they have made of the hidden state, and passed on.
  add(LayerPart::router, {unit}, {hidden}, {hidden, values.tokens, values.weights, values.experts},
      {std::move(attention.region), std::move(parts.router.region)})
      .kept = {hidden.name, values.tokens.name, values.experts.name};
  std::vector<BundleEntry> joined = {hidden, {"combined", hidden.width}};
  if (dims.shared_hidden > 0) {
    std::vector<BundleEntry> made = {{"shared", hidden.width}};
    if (dims.shared_gate) made.push_back({.name = "gate", .width = 1, .dtype = DType::f32});
    std::ranges::copy(made, std::back_inserter(joined));
    add(LayerPart::shared, {unit}, {values.tokens}, std::move(made), {std::move(parts.shared.region)});
  }
  add(LayerPart::experts, {unit + 1}, values.inputs(rows), {values.results(rows)},
      {std::move(parts.experts.region)})
      .dispatch = values.dispatch(dims.experts);
  add(LayerPart::join, {}, std::move(joined), {hidden}, {std::move(parts.join.region)});
}

}  // namespace stepforge
