// SPDX-License-Identifier: Apache-2.0
// Configurations shipped inside the program: presets/<name>.toml of the source tree.
#pragma once

#include <span>
#include <string_view>

namespace stepforge {

struct EmbeddedPreset {
  std::string_view name;
  std::string_view text;  ///< TOML; its first line is a comment that describes it.

  /// That line without its mark.
  std::string_view summary() const { return text.substr(2, text.find('\n') - 2); }
};

/// In the order of their names.
std::span<const EmbeddedPreset> embedded_presets();

/// nullptr if there is none of that name.
const EmbeddedPreset* find_preset(std::string_view name);

}  // namespace stepforge
