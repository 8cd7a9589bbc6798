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

inline const LayerValue kExpertWeights{.name = "weights", .width = 1, .type = ElementType::fp32};
inline const LayerValue kExpertIndices{
    .name = "experts", .width = 1, .type = ElementType::int32, .differentiable = false};

inline CallList one_call(const StatedCall& stated, const std::vector<LayerValue>& inputs) {
  ListWriter list("mlp");
  std::vector<int> operands;
  for (const LayerValue& input : inputs) operands.push_back(list.input(input));
  return list.finish({add_call(list, stated, operands)});
}

/// Of the hidden state, the tokens, their weights and their experts.
inline CallList router_calls(int64_t chosen) {
  ListWriter list("mlp");
  const int x = list.input({"hidden", 8});
  LayerValue weights = kExpertWeights;
  LayerValue experts = kExpertIndices;
  weights.width = experts.width = chosen;
  list.add({.kind = &kStated,
            .name = "route",
            .operands = {x},
            .attributes = OperationsAttributes{.results = {{"tokens", 8}, weights, experts},
                                               .derivative_reads = {.operands = 1, .results = 1},
                                               .flops = 100}});
  const std::vector<int> made = list.results();
  return list.finish({x, made[0], made[1], made[2]});
}

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
                         std::vector<BundleEntry> outputs, CallList list) -> BlockSpec& {
      model.blocks.push_back(
          layer_part(block.layer, part, std::move(units), std::move(inputs), std::move(outputs)));
      model.blocks.back().list = std::move(list);
      return model.blocks.back();
    };
    add(LayerPart::router, {unit}, {hidden}, {hidden, values.tokens, values.weights, values.experts},
        joined(chained_calls("attention", {{"norm", 8, 2}, {"linear", 8}}), router_calls(kChosen)));
    add(LayerPart::shared, {unit}, {values.tokens}, {{"shared", 8}}, one_call({"linear", 8, 16}, {{"x", 8}}));
    add(LayerPart::experts, {unit + 1}, values.inputs(kChosen), {values.results(kChosen)},
        one_call({"experts", 8, 16}, {{"rows", 8}, kExpertWeights, kExpertIndices}))
        .dispatch = values.dispatch(kExperts, {.method = method});
    add(LayerPart::join, {}, {hidden, {"combined", 8}, {"shared", 8}}, {hidden},
        one_call({"sum", 8, 0, false}, {{"hidden", 8}, {"combined", 8}, {"shared", 8}}));
  }
  return model;
}

}  // namespace stepforge::testing
