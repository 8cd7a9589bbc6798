// SPDX-License-Identifier: Apache-2.0
// A plug-in with the name of a built-in item.
#include "stepforge/base/plugin.h"
#include "stepforge/schedule/generators.h"

STEPFORGE_PLUGIN(registry) {
  registry.add(stepforge::ScheduleKind{.name = "1F1B", .stages = {1, 1}});
}
