// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/collectives.h"

#include <algorithm>
#include <set>

namespace stepforge {

std::vector<GroupLane> group_lanes(const StepProgram& program) {
  std::set<GroupLane> lanes;
  for (const Operation& operation : program.operations) {
    for (const GroupExchange& collective : collectives_of(operation))
      lanes.insert({collective.group, operation.lane});
    if (has_trait(operation.kind, kHasPeer)) lanes.insert({operation.group, operation.lane});
  }
  return {lanes.begin(), lanes.end()};
}

std::vector<CollectiveTotal> collective_totals(const StepProgram& program) {
  std::vector<CollectiveTotal> totals;
  const auto add = [&](int group, OpKind kind, int64_t bytes) {
    const auto found = std::ranges::find_if(
        totals, [&](const CollectiveTotal& total) { return total.group == group && total.kind == kind; });
    CollectiveTotal& total =
        found != totals.end() ? *found : totals.emplace_back(CollectiveTotal{group, kind, 0, 0});
    ++total.count;
    total.bytes += bytes;
  };
  for (const Operation& operation : program.operations) {
    for (const GroupExchange& collective : collectives_of(operation))
      add(collective.group, operation.kind, collective.bytes);
    if (sends_message(operation.kind)) add(operation.group, operation.kind, operation.bytes);
  }
  std::ranges::stable_sort(totals, {}, &CollectiveTotal::group);
  return totals;
}

}  // namespace stepforge
