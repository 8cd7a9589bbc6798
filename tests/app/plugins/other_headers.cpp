// SPDX-License-Identifier: Apache-2.0
// A plug-in of this version, but built with other headers.
#include "stepforge/base/plugin_build.h"

#undef STEPFORGE_PLUGIN_HEADERS
#define STEPFORGE_PLUGIN_HEADERS "0123456789abcdef0123456789abcdef"

#include "stepforge/base/plugin.h"
#include "tests/app/plugins/loud.h"

STEPFORGE_PLUGIN(registry) {
  registry.add(stepforge::SubCommand{"unwanted", "", nullptr});
}
