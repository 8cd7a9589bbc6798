// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule: all forwards, then the backwards of the newest micro-batch first.
#include <vector>

#include <stepforge/base/plugin.h>
#include <stepforge/schedule/generators.h>

using namespace stepforge;

static std::vector<Action> newest_first(const ScheduleShape& shape, int rank) {
  std::vector<Action> actions;
  for (int i = 0; i < shape.micro_batches; ++i) actions.push_back({ActionKind::forward, rank, i});
  for (int i = shape.micro_batches; i-- > 0;) actions.push_back({ActionKind::backward, rank, i});
  return actions;
}

STEPFORGE_PLUGIN(registry) {
  registry.add(ScheduleKind{.name = "NewestFirst", .stages = {1, 1}, .actions_of = newest_first});
}
