// SPDX-License-Identifier: Apache-2.0
// A plug-in whose entry function throws a number.
#include "stepforge/base/plugin.h"

STEPFORGE_PLUGIN(registry) {
  if (registry.plugins().empty()) throw 7;
}
