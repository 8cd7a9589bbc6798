// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/collectives.h"

#include <algorithm>

namespace stepforge {

std::vector<CollectiveTotal> collective_totals(const StepProgram& program) {
  std::vector<CollectiveTotal> totals;
  for (const Operation& operation : program.operations) {
    if (!is_collective(operation)) continue;
    const auto found = std::find_if(totals.begin(), totals.end(), [&](const CollectiveTotal& total) {
      return total.group == operation.group && total.kind == operation.kind;
    });
    CollectiveTotal& total =
        found != totals.end() ? *found
                              : totals.emplace_back(CollectiveTotal{operation.group, operation.kind, 0, 0});
    ++total.count;
    total.bytes += operation.bytes;
  }
  std::stable_sort(totals.begin(), totals.end(),
                   [](const CollectiveTotal& a, const CollectiveTotal& b) { return a.group < b.group; });
  return totals;
}

}  // namespace stepforge
