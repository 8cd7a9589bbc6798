// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/stage_names.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/modelspec/call_budget.h"

namespace stepforge {

namespace {

using Names = std::set<std::string>;

Names unit_names(const ModelSpec& model) {
  Names names;
  for (const UnitSpec& unit : model.units) names.insert(unit.name);
  return names;
}

Names block_names(const ModelSpec& model) {
  Names names;
  for (const BlockSpec& block : model.blocks) names.insert(block.name);
  return names;
}

/// The names of the regions that can be recomputed.
Names names_of_regions(const ModelSpec& model) {
  Names names;
  for (const BlockSpec& block : model.blocks)
    if (block.kind != BlockKind::head)
      for (std::string& name : region_names(block)) names.insert(std::move(name));
  return names;
}

/// The names of calls and their kinds, likewise.
Names names_of_calls(const ModelSpec& model) {
  Names names;
  for (const BlockSpec& block : model.blocks)
    if (block.kind != BlockKind::head)
      for (std::string& name : call_names(block)) names.insert(std::move(name));
  return names;
}

}  // namespace

void keep_names_of_part(StepOptions& options, const ModelSpec& whole, const ModelSpec& part) {
  const auto keep = [&](std::vector<std::string>& list, Names (*names_of)(const ModelSpec&)) {
    const Names known = names_of(whole);
    const Names own = names_of(part);
    std::erase_if(list, [&](const std::string& name) { return known.contains(name) && !own.contains(name); });
  };
  keep(options.recompute.blocks, block_names);
  keep(options.recompute.regions, names_of_regions);
  keep(options.recompute.calls, names_of_calls);
  std::vector<PrefetchList>& lists = options.gather.prefetch.lists;
  for (PrefetchList& list : lists) {
    keep(list.forward, unit_names);
    keep(list.backward, unit_names);
  }
  std::erase_if(lists, [&](const PrefetchList& list) {
    std::vector<std::string> unit = {list.unit};
    keep(unit, unit_names);
    return unit.empty();
  });
}

}  // namespace stepforge
