// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/calls_text.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/call_program.h"

namespace stepforge {

namespace {

/// The text of a call in which names of the layer's parameters are without "layers.3.mlp.".
std::string short_text(const BlockSpec& block, const CallList& list, const Call& call) {
  std::string text = text_of(list, call);
  const std::string layer = format("layers.{}.", block.layer);
  for (std::size_t at = text.find(layer); at != std::string::npos; at = text.find(layer, at))
    text.erase(at, text.rfind('.', text.find_first_of(",)", at)) + 1 - at);
  return text;
}

std::string call_line(const BlockSpec& block, const CallList& list, const Call& call, bool again) {
  std::string line = "    " + short_text(block, list, call);
  constexpr std::size_t kColumn = 60;
  line.append(line.size() < kColumn ? kColumn - line.size() : 1, ' ');
  const LayerValue& result = list.value(call.results.front());
  const bool dispatched = !block.inputs.empty() && block.inputs.front().dispatched > 0;
  const std::string rows = dispatched ? "rows" : result.rows == Rows::slice ? "slice" : "tokens";
  line += format("{} x {}", result.times > 1 ? format("{} {}", result.times, rows) : rows, result.width);
  const CallKind& kind = *call.kind;
  const std::vector<LayerValue> operands = list.values_of(call.operands);
  const std::string attributes = kind.text != nullptr ? kind.text({call, operands}) : "";
  if (!attributes.empty()) line += ", " + attributes;
  if (again) line += ", recomputed in backward";
  return line + "\n";
}

/// `recomputed`: regions and calls of the block.
std::string block_text(const BlockSpec& block, const std::vector<std::string>& recomputed) {
  std::string text;
  CallList list = block.list;
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
  // The blocks of one layer, whose experts may be spread over ranks.
  const auto end_of_layer = [&](std::size_t b) {
    std::size_t end = b + 1;
    while (end < model.blocks.size() && model.blocks[end].kind == BlockKind::layer &&
           !model.blocks[end].begins_layer())
      ++end;
    return end;
  };
  const auto text_of_layer = [&](std::size_t begin) {
    std::string text;
    for (std::size_t b = begin; b < end_of_layer(begin); ++b) {
      if (b > begin) text += " " + model.blocks[b].name.substr(model.blocks[begin].name.size()) + "\n";
      text += block_text(model.blocks[b],
                         b < blocks.size() ? blocks[b].recomputed_regions : std::vector<std::string>());
    }
    return text;
  };
  std::string text;
  for (std::size_t b = 0; b < model.blocks.size();) {
    const std::string calls = text_of_layer(b);
    std::size_t last = b;
    std::size_t end = end_of_layer(b);
    for (; end < model.blocks.size() && text_of_layer(end) == calls; end = end_of_layer(end)) last = end;
    text += model.blocks[b].name;
    if (last != b) text += format(" to {}", model.blocks[last].name);
    text += "\n" + calls;
    b = end;
  }
  return text;
}

}  // namespace stepforge
