// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <vector>

#include "stepforge/step/effects.h"
#include "stepforge/step/happens_before.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

constexpr int kNone = -1;

/// The accesses to one resource that a later one may have to wait for. Indices of operations.
struct Accesses {
  std::vector<int> users;  // since the last exclusive access: the last one of each lane
  int last = kNone;        // the last exclusive access
};

}  // namespace

void needs_pass(StepProgram& program) {
  ProgramEffects effects(program);
  std::vector<Accesses> accesses(effects.count());
  HappensBefore before;
  std::vector<int> conflicts;
  for (int i = 0; i < std::ssize(program.operations); ++i) {
    Operation& operation = element(program.operations, i);
    conflicts.clear();
    for (const auto& [effect, instance] : effects.of(operation)) {
      Accesses& earlier = accesses[effects.index(instance)];
      if (earlier.last != kNone) conflicts.push_back(earlier.last);
      if (effects.is_exclusive(effect.access, instance)) {
        conflicts.insert(conflicts.end(), earlier.users.begin(), earlier.users.end());
        earlier = {.users = {}, .last = i};
      } else {
        std::erase_if(earlier.users,
                      [&](int user) { return element(program.operations, user).lane == operation.lane; });
        earlier.users.push_back(i);
      }
    }
    std::ranges::sort(conflicts, std::greater<>());
    for (const int earlier : conflicts)
      if (earlier != i && !before.precedes_next(static_cast<std::size_t>(earlier), operation))
        operation.needs.push_back(earlier);
    before.add(operation);
  }
}

}  // namespace stepforge
