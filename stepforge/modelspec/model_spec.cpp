// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/model_spec.h"

#include <algorithm>
#include <utility>

#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/call_region.h"

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
  if (const CallList calls = block.calls(); !calls.empty()) return list_cost(calls, context, recomputed);
  std::vector<RegionSpec> regions = block.regions;
  for (std::size_t i = 0; i < regions.size(); ++i)
    if (!regions[i].list.empty()) add_sizes(regions[i], /*keeps_input=*/i > 0);
  return block_cost(regions, context, recomputed);
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
