// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <vector>

#include "stepforge/step/effects.h"
#include "stepforge/step/happens_before.h"
#include "stepforge/step/passes.h"

namespace stepforge {

void needs_pass(StepProgram& program) {
  ProgramEffects effects(program);
  std::vector<AccessOrder> accesses(effects.count());
  HappensBefore before;
  std::vector<int> conflicts;
  for (int i = 0; i < std::ssize(program.operations); ++i) {
    Operation& operation = element(program.operations, i);
    conflicts.clear();
    for (const auto& [effect, instance] : effects.of(operation)) {
      const bool exclusive = effects.is_exclusive(effect.access, instance);
      accesses[effects.index(instance)].add(i, operation.lane, exclusive,
                                            [&](int earlier) { conflicts.push_back(earlier); });
    }
    std::ranges::sort(conflicts, std::greater<>());
    for (const int earlier : conflicts)
      if (earlier != i && !before.precedes_next(static_cast<std::size_t>(earlier), operation))
        operation.needs.push_back(earlier);
    before.add(operation);
  }
}

}  // namespace stepforge
