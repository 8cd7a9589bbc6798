// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/calls_text.h"

#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_table.h"

namespace stepforge {

namespace {

/// A call without what all calls of the block and region have in common: the begin of the names of their weights.
std::string call_line(const BlockSpec& block, const CallList& list, const Call& call) {
  std::string line = "    " + text_of(list, call);
  const std::string prefix = block.name + "." + call.region + ".";
  for (std::size_t at = line.find(prefix); at != std::string::npos; at = line.find(prefix, at))
    line.erase(at, prefix.size());
  constexpr std::size_t kColumn = 60;
  line.append(line.size() < kColumn ? kColumn - line.size() : 1, ' ');
  const LayerValue& result = list.value(call.results.front());
  const std::string rows = result.rows == Rows::slice ? "slice" : "tokens";
  line += format("{} x {}", result.times > 1 ? format("{} {}", result.times, rows) : rows, result.width);
  const CallRow& row = row_of(call.kind);
  const std::vector<LayerValue> operands = list.values_of(call.operands);
  const std::string attributes = row.text != nullptr ? row.text({call, operands}) : "";
  if (!attributes.empty()) line += ", " + attributes;
  if (call.recompute) line += ", recomputed in backward";
  return line + "\n";
}

std::string block_text(const BlockSpec& block) {
  std::string text;
  const CallList list = block.calls();
  if (list.empty()) {
    for (const RegionSpec& region : block.regions) {
      text += format("  {}\n", region.name);
      for (const CallSpec& call : region.calls) text += format("    {}\n", call.name);
    }
    return text;
  }
  std::string region;
  for (const Call& call : list.calls) {
    if (call.region != region) text += format("  {}\n", call.region);
    region = call.region;
    text += call_line(block, list, call);
  }
  return text;
}

}  // namespace

std::string calls_text(const ModelSpec& model) {
  std::string text;
  for (std::size_t b = 0; b < model.blocks.size();) {
    const std::string calls = block_text(model.blocks[b]);
    std::size_t end = b + 1;
    while (end < model.blocks.size() && block_text(model.blocks[end]) == calls) ++end;
    text += model.blocks[b].name;
    if (end - b > 1) text += format(" to {}", model.blocks[end - 1].name);
    text += "\n" + calls;
    b = end;
  }
  return text;
}

}  // namespace stepforge
