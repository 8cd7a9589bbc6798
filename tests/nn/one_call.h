// SPDX-License-Identifier: Apache-2.0
// Blocks of one call, for tests of what a call computes.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/nn/list_block.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {

/// A call of inputs of these widths, by `weights`; its first result is the output.
inline CallList one_call(const CallKind& kind, const std::vector<int64_t>& widths, std::any attributes = {},
                         const std::vector<const ParameterSpec*>& weights = {}) {
  ListWriter writer("test");
  std::vector<int> inputs;
  for (const int64_t width : widths) inputs.push_back(writer.input({"x", width}));
  const int made = writer.call(kind, "call", inputs, weights, std::move(attributes));
  return writer.finish({made});
}

/// A block of calls that have no weights.
inline std::unique_ptr<ListBlock> block_of(const CallList& list, const LayerResources& resources = {}) {
  const ParameterLookup none = [](std::string_view name) -> Parameter& {
    throw Error("no parameter " + std::string(name));
  };
  return std::make_unique<ListBlock>(list, list, none, std::make_shared<const LayerResources>(resources));
}

/// Attention by the method of `exchange`, of the rows of `batch`.
inline at::Tensor attend_by_calls(const at::Tensor& qkv, const AttentionShape& shape,
                                  const BatchTensors& batch, const ContextExchange& exchange = {}) {
  const CallList whole = one_call(kAttention, {shape.qkv_width()}, AttentionAttributes{shape});
  const auto block = block_of(over_context(whole, exchange.parallel), {{}, {}, {}, exchange});
  Context context;
  context.batch = &batch;
  return forward_in_graph(*block, {qkv}, context).front();
}

}  // namespace stepforge::testing
