// SPDX-License-Identifier: Apache-2.0
// A plug-in of an earlier version.
#include "stepforge/base/plugin.h"

extern "C" __attribute__((visibility("default"))) const stepforge::PluginBuild stepforge_plugin_build;
const stepforge::PluginBuild stepforge_plugin_build = {"0.0.9", __VERSION__, _GLIBCXX_USE_CXX11_ABI};

extern "C" __attribute__((visibility("default"))) void stepforge_plugin(stepforge::Registry& registry);
void stepforge_plugin(stepforge::Registry& registry) {
  registry.add(stepforge::SubCommand{"unwanted", "", nullptr});
}
