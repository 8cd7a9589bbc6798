// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/expert_values.h"

#include <array>
#include <cstddef>
#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

ExpertValues::ExpertValues(const BundleEntry& hidden, int64_t chosen)
    : hidden(hidden),
      tokens{"tokens", hidden.width, hidden.slice},
      weights{.name = "weights", .width = chosen, .slice = hidden.slice, .dtype = DType::f32},
      experts{.name = "experts", .width = chosen, .slice = hidden.slice, .dtype = DType::i32} {}

DispatchSpec ExpertValues::dispatch(int64_t count, const ExpertParallel& parallel) const {
  return {count, parallel.parts, parallel.method, {tokens, weights, experts}, {combined()}};
}

BundleEntry ExpertValues::combined() const {
  return {"combined", hidden.width, hidden.slice};
}

std::vector<BundleEntry> ExpertValues::inputs(int64_t rows) const {
  const bool slice = hidden.slice;
  return {{.name = "rows", .width = hidden.width, .slice = slice, .dispatched = rows},
          {.name = "weights", .width = 1, .slice = slice, .dispatched = rows, .dtype = DType::f32},
          {.name = "experts", .width = 1, .slice = slice, .dispatched = rows, .dtype = DType::i32}};
}

BundleEntry ExpertValues::results(int64_t rows) const {
  return {.name = "results", .width = hidden.width, .slice = hidden.slice, .dispatched = rows};
}

BlockSpec layer_part(int layer, LayerPart part, std::vector<int> units, std::vector<BundleEntry> inputs,
                     std::vector<BundleEntry> outputs) {
  constexpr std::array<const char*, 5> kSuffixes = {"", "", ".shared", ".experts", ".join"};
  return {.name = format("layers.{}{}", layer, kSuffixes.at(static_cast<std::size_t>(part))),
          .kind = BlockKind::layer,
          .layer = layer,
          .units = std::move(units),
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .part = part};
}

}  // namespace stepforge
