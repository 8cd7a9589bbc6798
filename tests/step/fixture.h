// SPDX-License-Identifier: Apache-2.0
// A small model whose sizes are easy to add up: an embedding, layers of two regions, a head.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/operations.h"
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

/// A call whose sizes are stated; in a layer like all others, not a block of your own.
inline constexpr CallKind kStated = kOperations;

/// What a call makes, with `kept` statistics for its derivative, which reads its first operand too if it `keeps_input`.
struct StatedCall {
  std::string name;
  int64_t width = 8;
  int64_t kept = 0;
  bool keeps_input = true;
};

/// Returns the result, in the region of the writer.
inline int add_call(ListWriter& list, const StatedCall& stated, std::vector<int> operands) {
  OperationsAttributes attributes{.results = {{.name = "", .width = stated.width}}, .flops = 100};
  if (stated.kept > 0)
    attributes.results.push_back({.name = "", .width = stated.kept, .differentiable = false});
  attributes.derivative_reads = {.operands = stated.keeps_input ? 1U : 0U,
                                 .results = stated.kept > 0 ? 2U : 0U};
  return list.add({.kind = &kStated,
                   .name = stated.name,
                   .operands = std::move(operands),
                   .attributes = std::move(attributes)});
}

/// Calls one after the other.
inline CallList chained_calls(const std::string& region, const std::vector<StatedCall>& calls) {
  ListWriter list(region);
  int y = list.input({"hidden", 8});
  for (const StatedCall& call : calls) y = add_call(list, call, {y});
  return list.finish({y});
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
  ListWriter embedding("embedding");
  model.blocks.push_back({"embedding",
                          BlockKind::embedding,
                          -1,
                          {0},
                          {},
                          hidden,
                          embedding.finish({add_call(embedding, {"lookup", 8, 0, false}, {})})});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = format("layers.{}", layer);
    model.units.push_back({name,
                           {parameter(name + ".norm", {8}, ParameterTag::norm),
                            parameter(name + ".weight", {8, 8}, ParameterTag::matrix)},
                           true});
    const CallList attention = chained_calls("attention", {{"norm", 8, 2}, {"linear", 8}});
    const CallList mlp = chained_calls("mlp", {{"linear", 16}, {"act", 8}});
    model.blocks.push_back(
        {name, BlockKind::layer, layer, {layer + 1}, hidden, hidden, joined(attention, mlp)});
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
  ListWriter head("loss");
  const int x = head.input({"hidden", 8});
  model.blocks.push_back(
      {"head", BlockKind::head, -1, head_units, hidden, {}, head.finish({add_call(head, {"loss", 1}, {x})})});
  return model;
}

/// Lets the last stated call of each region exchange `forward` and `backward` elements per token.
inline void add_exchanges(BlockSpec& block, BlockAxis axis, int64_t forward, int64_t backward) {
  std::set<std::string> done;
  for (auto call = block.list.calls.rbegin(); call != block.list.calls.rend(); ++call) {
    if (!call->is(kStated) || !done.insert(call->region).second) continue;
    CallExchanges& exchanges = std::any_cast<OperationsAttributes&>(call->attributes).exchanges;
    exchanges.forward.push_back({axis, ExchangeKind::sum, {forward}});
    exchanges.backward.push_back({axis, ExchangeKind::sum, {backward}});
  }
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
