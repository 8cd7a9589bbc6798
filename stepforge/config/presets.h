// SPDX-License-Identifier: Apache-2.0
// Built-in configurations: the files presets/<name>.toml of the source tree, embedded in the program.
#pragma once

#include <span>
#include <string_view>

#include "stepforge/base/embedded_file.h"

namespace stepforge {

/// All presets, sorted by name.
std::span<const EmbeddedFile> embedded_presets();

/// Returns nullptr if the preset does not exist.
const EmbeddedFile* find_preset(std::string_view name);

}  // namespace stepforge
