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
    const auto access = [&](Access kind, const Instance& instance) {
      accesses[effects.index(instance)].add(i, operation.lane, effects.is_exclusive(kind, instance),
                                            [&](int earlier) { conflicts.push_back(earlier); });
    };
    for (const auto& [effect, instance] : effects.of(operation)) access(effect.access, instance);
    for (const int buffer : operation.reads) access(Access::use, {Resource::buffer, buffer, 0});
    for (const int buffer : operation.frees) access(Access::end, {Resource::buffer, buffer, 0});
    std::ranges::sort(conflicts, std::greater<>());
    for (const int earlier : conflicts)
      if (earlier != i && !before.precedes_next(static_cast<std::size_t>(earlier), operation))
        operation.needs.push_back(earlier);
    before.add(operation);
  }
}

}  // namespace stepforge
