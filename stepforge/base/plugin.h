// SPDX-License-Identifier: Apache-2.0
// Plug-ins: shared libraries that add to the program. docs/extending.md shows how to write one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "stepforge/base/registry.h"

namespace stepforge {

/// What a plug-in was built with. Items are C++ objects, so it must be what the program was built with. The layout of this
/// struct never changes.
struct PluginBuild {
  char version[32];   // NOLINT(modernize-avoid-c-arrays): read before anything is known to agree
  char compiler[64];  // NOLINT(modernize-avoid-c-arrays)
  uint32_t cxx11_abi;
};

/// Of the headers, in every plug-in and in the program. A test keeps the version equal to version().
inline constexpr PluginBuild kPluginBuild = {"0.1.0", __VERSION__, _GLIBCXX_USE_CXX11_ABI};

inline constexpr const char* kPluginBuildName = "stepforge_plugin_build";
inline constexpr const char* kPluginEntryName = "stepforge_plugin";

/// Defines the entry function of a plug-in:
///
///     STEPFORGE_PLUGIN(registry) { registry.add(CallbackKind{"lowest_loss", make_lowest_loss}); }
// NOLINTBEGIN(bugprone-macro-parentheses): the name of a parameter
#define STEPFORGE_PLUGIN(registry)                                                                        \
  extern "C" __attribute__((visibility("default"))) const stepforge::PluginBuild stepforge_plugin_build;  \
  const stepforge::PluginBuild stepforge_plugin_build = stepforge::kPluginBuild;                          \
  extern "C" __attribute__((visibility("default"))) void stepforge_plugin(stepforge::Registry& registry); \
  void stepforge_plugin(stepforge::Registry& registry)
// NOLINTEND(bugprone-macro-parentheses)

/// Loads the library and calls its entry function. Does nothing if the file is loaded already. `named_at` is where the user
/// named it, for messages: "--plugin", "run.toml:3:18". Throws UsageError with file and remedy if there is no such file, it
/// is not a plug-in or was built for another version, or its entry function throws. A loaded library stays loaded.
void load_plugin(const std::filesystem::path& file, const std::string& named_at, Registry& registry);

}  // namespace stepforge
