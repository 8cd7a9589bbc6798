// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/model_spec.h"

#include <algorithm>
#include <utility>

#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/calls/operations.h"

namespace stepforge {

bool BlockSpec::uses_autograd() const {
  return std::ranges::any_of(list.calls, [](const Call& call) { return call.is(kOperations); });
}

std::array<bool, kBlockAxes> BlockSpec::exchanged_axes() const {
  std::array<bool, kBlockAxes> axes = {};
  for (const Call& call : list.calls) {
    if (call.kind->exchanges == nullptr) continue;
    const std::vector<LayerValue> operands = list.values_of(call.operands);
    const CallExchanges exchanges = call.kind->exchanges({call, operands});
    for (const auto* made : {&exchanges.forward, &exchanges.backward})
      for (const Exchange& exchange : *made) axes.at(static_cast<std::size_t>(exchange.axis)) = true;
  }
  return axes;
}

BlockCost block_cost(const BlockSpec& block, const CostContext& context,
                     const std::vector<std::string>& recomputed) {
  CostContext of_block = context;
  if (!block.inputs.empty() && block.inputs.front().dispatched > 0) {
    if (block.inputs.front().slice) of_block.tokens /= std::exchange(of_block.slices, 1);
    of_block.tokens *= block.inputs.front().dispatched;
  }
  return list_cost(block.list, of_block, recomputed);
}

std::vector<std::string> kept_outputs(const BlockSpec& block) {
  const BlockProgram program = derive(block.list, /*trains=*/true);
  std::vector<std::string> kept;
  // A list that makes other values than the block is refused by its value types.
  for (std::size_t i = 0; i < std::min(block.outputs.size(), program.outputs.size()); ++i)
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
    for (const CallInfo& info : call_infos(block.list)) {
      attention += 3.0 * flops_of_keys(info, seq_len);
      if (info.rule() == TypeRule::loss && block.ahead > 0 &&
          !info.call->weights.empty())  // once more by the weight of the first head
        matmul_parameters += find_parameter(info.call->weights.front().name)->elements();
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
