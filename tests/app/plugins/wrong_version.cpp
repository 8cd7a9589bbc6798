// SPDX-License-Identifier: Apache-2.0
// A plug-in of an earlier version.
#include "stepforge/base/plugin_build.h"

#undef STEPFORGE_PLUGIN_VERSION
#define STEPFORGE_PLUGIN_VERSION "0.0.9"

#include "stepforge/base/plugin.h"
#include "tests/app/plugins/loud.h"

STEPFORGE_PLUGIN(registry) {
  registry.add(stepforge::SubCommand{"unwanted", "", nullptr});
}
