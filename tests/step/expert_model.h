// SPDX-License-Identifier: Apache-2.0
// The small model with experts that are spread over ranks: each layer is cut into four blocks, between which rows pass.
#pragma once

#include <string>
#include <vector>

#include "stepforge/modelspec/expert_values.h"
#include "tests/step/fixture.h"

namespace stepforge::testing {

inline constexpr int kExpertUnit = 2;  ///< of layers.0
/// Blocks of layers.0; those of layers.1 are four further.
inline constexpr int kRouterBlock = 1;
inline constexpr int kSharedBlock = 2;
inline constexpr int kExpertsBlock = 3;
inline constexpr int kJoinBlock = 4;
inline constexpr int kLayerBlocks = 4;

inline ModelSpec expert_model(int layers = 2, DispatchMethod method = DispatchMethod::all_to_all) {
  constexpr int64_t kExperts = 4;
  constexpr int64_t kChosen = 2;
  const ModelSpec plain = small_model(layers);
  ModelSpec model = plain;
  model.units.clear();
  model.blocks.clear();
  for (const BlockSpec& block : plain.blocks) {
    const auto unit = static_cast<int>(model.units.size());
    model.units.push_back(plain.units.at(static_cast<std::size_t>(block.units.front())));
    if (block.kind != BlockKind::layer) {
      model.blocks.push_back(block);
      model.blocks.back().units = {unit};
      continue;
    }
    model.units.push_back({.name = block.name + ".experts",
                           .parameters = {parameter(block.name + ".experts", {16, 8}, ParameterTag::matrix)},
                           .mesh = UnitMesh::experts});
    const BundleEntry hidden = block.inputs.front();
    const ExpertValues values(hidden, kChosen);
    const auto add = [&](LayerPart part, std::vector<int> units, std::vector<BundleEntry> inputs,
                         std::vector<BundleEntry> outputs, CallSpec last) -> BlockSpec& {
      model.blocks.push_back(layer_part(block.layer, part, std::move(units), std::move(inputs),
                                        std::move(outputs), {{"mlp", {std::move(last)}}}));
      return model.blocks.back();
    };
    BlockSpec& router = add(LayerPart::router, {unit}, {hidden},
                            {hidden, values.tokens, values.weights, values.experts}, call("route", 8, 16, 8));
    router.kept = {"hidden", "tokens"};
    router.regions.insert(router.regions.begin(), block.regions.front());
    add(LayerPart::shared, {unit}, {values.tokens}, {{"shared", 8}}, call("linear", 8, 16, 8));
    add(LayerPart::experts, {unit + 1}, values.inputs(kChosen), {values.results(kChosen)},
        call("experts", 16, 32, 16))
        .dispatch = values.dispatch(kExperts, {.method = method});
    add(LayerPart::join, {}, {hidden, {"combined", 8}, {"shared", 8}}, {hidden}, call("sum", 8, 0, 0));
  }
  return model;
}

}  // namespace stepforge::testing
