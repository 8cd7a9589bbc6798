// SPDX-License-Identifier: Apache-2.0
// A plug-in whose entry function registers a name twice.
#include "stepforge/base/plugin.h"

STEPFORGE_PLUGIN(registry) {
  registry.add(stepforge::SubCommand{"twice", "A command", nullptr});
  registry.add(stepforge::SubCommand{"twice", "Another", nullptr});
}
