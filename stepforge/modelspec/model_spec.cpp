// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/model_spec.h"

#include <algorithm>
#include <utility>

#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/call_program.h"

namespace stepforge {

bool BlockSpec::exchanges_over(BlockAxis axis) const {
  const auto over_axis = [axis](const Exchange& exchange) { return exchange.axis == axis; };
  return std::ranges::any_of(regions, [&](const RegionSpec& region) {
    return std::ranges::any_of(region.calls, [&](const CallSpec& call) {
      return std::ranges::any_of(call.forward_exchanges, over_axis) ||
             std::ranges::any_of(call.backward_exchanges, over_axis);
    });
  });
}

CallList BlockSpec::joined_lists(CallList RegionSpec::* list) const {
  CallList all;
  for (const RegionSpec& region : regions) {
    if ((region.*list).empty()) return {};
    all = all.empty() ? region.*list : joined(std::move(all), region.*list);
  }
  return all;
}

BlockCost block_cost(const BlockSpec& block, const CostContext& context,
                     const std::vector<std::string>& recomputed) {
  const CallList calls = block.calls();
  if (calls.empty()) return block_cost(block.regions, context, recomputed);
  CostContext of_block = context;
  if (!block.inputs.empty() && block.inputs.front().dispatched > 0) {
    if (block.inputs.front().slice) of_block.tokens /= std::exchange(of_block.slices, 1);
    of_block.tokens *= block.inputs.front().dispatched;
  }
  return list_cost(calls, of_block, recomputed);
}

std::vector<std::string> kept_outputs(const BlockSpec& block) {
  const CallList calls = block.calls();
  if (calls.empty()) return block.kept;
  const BlockProgram program = derive(calls, /*trains=*/true);
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < block.outputs.size(); ++i)
    if (std::ranges::binary_search(program.saved, program.outputs[i])) kept.push_back(block.outputs[i].name);
  return kept;
}

int64_t ModelSpec::parameter_count() const {
  int64_t sum = 0;
  for (const UnitSpec& unit : units) sum += unit.elements();
  return sum;
}

int64_t ModelSpec::active_parameter_count() const {
  int64_t sum = 0;
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& parameter : unit.parameters) sum += parameter.active_elements();
  return sum;
}

double ModelSpec::flops_per_token(int64_t seq_len) const {
  const auto is_tied = [this](const ParameterSpec& parameter) {
    return std::any_of(ties.begin(), ties.end(),
                       [&](const TieSpec& tie) { return tie.parameter == parameter.name; });
  };
  int64_t matmul_parameters = active_parameter_count();
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.tag == ParameterTag::embedding && !is_tied(parameter))
        matmul_parameters -= parameter.elements();  // looked up, not multiplied
  }
  double attention = 0.0;
  for (const BlockSpec& block : blocks) {
    for (const RegionSpec& region : block.regions) {
      for (const CallSpec& call : region.calls) {
        attention += 3.0 * call.flops_per_key * static_cast<double>(call.keys(seq_len));
        if (call.rule == TypeRule::loss && block.ahead > 0)  // once more by the weight of the first head
          matmul_parameters += find_parameter(call.weights.front())->elements();
      }
    }
  }
  return 6.0 * static_cast<double>(matmul_parameters) + attention;
}

std::vector<BundleEntry> ModelSpec::values_before(std::size_t block) const {
  std::vector<BundleEntry> taken;
  std::vector<BundleEntry> made;
  const auto has = [](const std::vector<BundleEntry>& values, const BundleEntry& value) {
    return std::ranges::find(values, value.name, &BundleEntry::name) != values.end();
  };
  for (std::size_t b = block; b < blocks.size(); ++b) {
    for (const BundleEntry& input : blocks[b].takes())
      if (!has(made, input) && !has(taken, input)) taken.push_back(input);
    made.insert(made.end(), blocks[b].makes().begin(), blocks[b].makes().end());
  }
  return taken;
}

const ParameterSpec* ModelSpec::find_parameter(std::string_view name) const {
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

}  // namespace stepforge
