// SPDX-License-Identifier: Apache-2.0
// Plug-ins: shared libraries that add to the program. docs/extending.md shows how to write one.
#pragma once

#include <cstdint>

#include "stepforge/base/plugin_build.h"
#include "stepforge/base/registry.h"

namespace stepforge {

/// The build that a plug-in was compiled for. It must equal the program's, since items are C++ objects. The program reads it
/// from a section of the file before it loads the library.
struct PluginBuild {
  char version[32];   // NOLINT(modernize-avoid-c-arrays): read before anything is known to agree
  char headers[40];   // NOLINT(modernize-avoid-c-arrays): a hash of the public headers
  char compiler[64];  // NOLINT(modernize-avoid-c-arrays)
  uint32_t cxx11_abi;
};

/// The build of these headers, compiled into every plug-in and into the program.
inline constexpr PluginBuild kPluginBuild = {STEPFORGE_PLUGIN_VERSION, STEPFORGE_PLUGIN_HEADERS, __VERSION__,
                                             _GLIBCXX_USE_CXX11_ABI};

/// Defines the entry function of a plug-in:
///
///     STEPFORGE_PLUGIN(registry) { registry.add(CallbackKind{"lowest_loss", make_lowest_loss}); }
// NOLINTBEGIN(bugprone-macro-parentheses): the name of a parameter
#define STEPFORGE_PLUGIN(registry)                                                                        \
  extern "C" __attribute__((visibility("default"), section(".stepforge_plugin")))                         \
  const stepforge::PluginBuild stepforge_plugin_build;                                                    \
  const stepforge::PluginBuild stepforge_plugin_build = stepforge::kPluginBuild;                          \
  extern "C" __attribute__((visibility("default"))) void stepforge_plugin(stepforge::Registry& registry); \
  void stepforge_plugin(stepforge::Registry& registry)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace stepforge
