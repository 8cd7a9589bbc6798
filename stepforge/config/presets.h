// SPDX-License-Identifier: Apache-2.0
// Built-in configurations: the files presets/<name>.toml of the source tree, embedded in the program.
#pragma once

#include <span>
#include <string_view>

namespace stepforge {

struct EmbeddedPreset {
  std::string_view name;
  std::string_view text;  ///< TOML; the first line is a comment that describes the preset.

  /// The first line without "# ".
  std::string_view summary() const { return text.substr(2, text.find('\n') - 2); }
};

/// All presets, sorted by name.
std::span<const EmbeddedPreset> embedded_presets();

/// Returns nullptr if the preset does not exist.
const EmbeddedPreset* find_preset(std::string_view name);

}  // namespace stepforge
