// SPDX-License-Identifier: Apache-2.0
// Loading plug-ins.
#pragma once

#include <filesystem>
#include <string>

#include "stepforge/base/registry.h"

namespace stepforge {

/// Whether this plug-in is loaded, by this or another path.
bool is_loaded(const std::filesystem::path& file, const Registry& registry);

/// Loads the library and calls its entry function. Does nothing if the file is loaded already. `named_at` is where the user
/// named it, for messages: "--plugin", "run.toml:3:18". Throws UsageError with file and remedy if the file does not exist, is
/// not a plug-in, is damaged or was built for another version (none of its code has run then), or if its entry function
/// throws. A loaded library stays loaded.
void load_plugin(const std::filesystem::path& file, const std::string& named_at, Registry& registry);

}  // namespace stepforge
