// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/calls_text.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/call_table.h"

namespace stepforge {

namespace {

/// A call without what all calls of the block and region have in common: the begin of the names of their weights.
std::string call_line(const BlockSpec& block, const CallList& list, const Call& call, bool again) {
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
  if (again) line += ", recomputed in backward";
  return line + "\n";
}

/// Which calls of a list backward makes again.
std::vector<bool> calls_made_again(const CallList& list) {
  std::vector<bool> again(list.calls.size());
  for (const CallStep& step : derive(list, /*trains=*/true).backward)
    if (step.action == CallAction::forward) again[static_cast<std::size_t>(step.call)] = true;
  return again;
}

/// `recomputed`: regions and calls of the block.
std::string block_text(const BlockSpec& block, const std::vector<std::string>& recomputed) {
  std::string text;
  CallList list = block.calls();
  if (list.empty()) {
    for (const RegionSpec& region : block.regions) {
      const bool again = std::ranges::count(recomputed, region.name) > 0;
      text += format("  {}{}\n", region.name, again ? ", recomputed in backward" : "");
      for (const CallSpec& call : region.calls) text += format("    {}\n", call.name);
    }
    return text;
  }
  recompute_calls(list, recomputed);
  const std::vector<bool> again = calls_made_again(list);
  std::string region;
  for (std::size_t c = 0; c < list.calls.size(); ++c) {
    const Call& call = list.calls[c];
    if (call.region != region) text += format("  {}\n", call.region);
    region = call.region;
    text += call_line(block, list, call, again[c]);
  }
  return text;
}

}  // namespace

std::string calls_text(const ModelSpec& model, std::span<const ProgramBlock> blocks) {
  const auto text_of_block = [&](std::size_t b) {
    return block_text(model.blocks[b],
                      b < blocks.size() ? blocks[b].recomputed_regions : std::vector<std::string>());
  };
  std::string text;
  for (std::size_t b = 0; b < model.blocks.size();) {
    const std::string calls = text_of_block(b);
    std::size_t end = b + 1;
    while (end < model.blocks.size() && text_of_block(end) == calls) ++end;
    text += model.blocks[b].name;
    if (end - b > 1) text += format(" to {}", model.blocks[end - 1].name);
    text += "\n" + calls;
    b = end;
  }
  return text;
}

}  // namespace stepforge
