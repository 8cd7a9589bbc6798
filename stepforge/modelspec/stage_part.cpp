// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/stage_part.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

void check_stages(const ModelSpec& whole, const std::vector<int>& stages) {
  if (!std::ranges::is_sorted(stages, std::less_equal<>()))
    throw Error("the stages of a rank are not in ascending order");
  for (const int stage : stages) {
    if (std::ranges::find(whole.blocks, stage, &BlockSpec::stage) != whole.blocks.end()) continue;
    throw Error(format("stage {} has no block; the model has {} stages", stage, stage_count(whole)));
  }
}

}  // namespace

int stage_count(const ModelSpec& model) {
  int stages = 0;
  for (const BlockSpec& block : model.blocks) stages = std::max(stages, block.stage + 1);
  return stages;
}

ModelSpec stage_part(const ModelSpec& whole, const std::vector<int>& stages) {
  check_stages(whole, stages);
  ModelSpec part = whole;
  const auto is_own = [&](const BlockSpec& block) { return std::ranges::binary_search(stages, block.stage); };
  for (std::size_t b = 1; b < whole.blocks.size(); ++b) {
    if (is_own(part.blocks[b]) && !is_own(part.blocks[b - 1]))
      part.blocks[b].arriving = whole.values_before(b);
    if (is_own(part.blocks[b - 1]) && !is_own(part.blocks[b]))
      part.blocks[b - 1].leaving = whole.values_before(b);
  }
  std::erase_if(part.blocks, [&](const BlockSpec& block) { return !is_own(block); });
  std::vector<int> number(whole.units.size(), -1);  // of each unit in the part; -1: not used
  for (const BlockSpec& block : part.blocks)
    for (const int unit : block.units) number.at(static_cast<std::size_t>(unit)) = 0;
  part.units.clear();
  for (std::size_t u = 0; u < number.size(); ++u) {
    if (number[u] < 0) continue;
    number[u] = static_cast<int>(part.units.size());
    part.units.push_back(whole.units[u]);
  }
  for (BlockSpec& block : part.blocks)
    for (int& unit : block.units) unit = number[static_cast<std::size_t>(unit)];
  return part;
}

}  // namespace stepforge
