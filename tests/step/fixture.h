// SPDX-License-Identifier: Apache-2.0
// A small model whose sizes are easy to add up: an embedding, layers of two regions, a head.
#pragma once

#include <string>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/build.h"
#include "stepforge/step/program.h"
#include "tests/step/data_parallel.h"

namespace stepforge::testing {

inline ParameterSpec parameter(const std::string& name, std::vector<int64_t> shape, ParameterTag tag) {
  ParameterSpec spec;
  spec.name = name;
  spec.sub_tensors.push_back({"weight", name, shape[0], {}});
  spec.shape = std::move(shape);
  spec.tag = tag;
  return spec;
}

inline CallSpec call(const std::string& name, int64_t output, int64_t saves, int64_t gradient) {
  CallSpec cost;
  cost.name = name;
  cost.flops = 100;
  cost.output = {output, 0};
  cost.saves = {saves, 0};
  cost.gradient = {gradient, 0};
  return cost;
}

/// Width 8, vocabulary 32. A tied model's head uses the embedding's unit beside its own.
inline ModelSpec small_model(int layers = 2, bool tied = false) {
  ModelSpec model;
  model.family = "small";
  model.vocab_size = 32;
  model.width = 8;
  model.layers = layers;
  model.kv_heads = 2;
  model.head_dim = 4;
  model.value_dim = 4;
  model.attention_width = 8;
  model.units.push_back(
      {"embedding", {parameter("embedding.weight", {32, 8}, ParameterTag::embedding)}, true});
  const std::vector<BundleEntry> hidden = {{"hidden", 8}};
  model.blocks.push_back({"embedding",
                          BlockKind::embedding,
                          -1,
                          {0},
                          {},
                          hidden,
                          {{"embedding", {call("lookup", 8, 0, 0)}, false}}});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = format("layers.{}", layer);
    model.units.push_back({name,
                           {parameter(name + ".norm", {8}, ParameterTag::norm),
                            parameter(name + ".weight", {8, 8}, ParameterTag::matrix)},
                           true});
    const RegionSpec attention{"attention", {call("norm", 8, 2, 8), call("linear", 8, 8, 8)}, true};
    const RegionSpec mlp{"mlp", {call("linear", 16, 8, 8), call("act", 8, 16, 16)}, true};
    model.blocks.push_back({name, BlockKind::layer, layer, {layer + 1}, hidden, hidden, {attention, mlp}});
  }
  std::vector<int> head_units = {layers + 1};
  if (tied) {
    head_units.push_back(0);
    model.units.push_back({"head", {parameter("norm.weight", {8}, ParameterTag::norm)}, true});
    model.ties.push_back({"embedding.weight", "head", "lm_head.weight"});
  } else {
    model.units.push_back({"head",
                           {parameter("norm.weight", {8}, ParameterTag::norm),
                            parameter("head.weight", {32, 8}, ParameterTag::head)},
                           true});
  }
  model.blocks.push_back(
      {"head", BlockKind::head, -1, head_units, hidden, {}, {{"loss", {call("loss", 0, 0, 8)}, false}}});
  return model;
}

/// Lets the region's last call exchange `forward` and `backward` elements per token.
inline void add_exchange(RegionSpec& region, BlockAxis axis, int64_t forward, int64_t backward) {
  region.calls.back().forward_exchanges.push_back({axis, ExchangeKind::sum, {forward}});
  region.calls.back().backward_exchanges.push_back({axis, ExchangeKind::sum, {backward}});
}

inline RankOptions small_options(int micro_batches = 1) {
  RankOptions options;
  options.micro_batches = micro_batches;
  options.cost.tokens = 16;
  options.cost.document_length = 16;
  return options;
}

/// One line per operation: operation_text(), "+" buffers it allocates, "-" buffers it frees.
inline std::string listing(const StepProgram& program) {
  std::string text;
  for (const Operation& operation : program.operations) {
    text += operation_text(program, operation);
    for (const int buffer : operation.allocates)
      text += " +" + program.buffers.at(static_cast<size_t>(buffer)).name;
    for (const int buffer : operation.frees)
      text += " -" + program.buffers.at(static_cast<size_t>(buffer)).name;
    text += "\n";
  }
  return text;
}

}  // namespace stepforge::testing
