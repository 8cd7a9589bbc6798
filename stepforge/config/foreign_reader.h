// SPDX-License-Identifier: Apache-2.0
// Parses configuration files in JSON and YAML into the same values as the TOML reader.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/config/value.h"

namespace stepforge {

/// Both throw FormatError naming `name` if the text is malformed or is not a table.
ConfigValue parse_config_json(std::string_view text, const std::string& name);
ConfigValue parse_config_yaml(std::string_view text, const std::string& name);

/// A YAML scalar without quotes: null, which is an empty text, a boolean, a number or a text.
ConfigValue yaml_scalar(const std::string& text);

/// Whether the first line that is neither empty nor a comment is YAML: `key: value`, `- item` or `---`.
bool looks_like_yaml(std::string_view text);

}  // namespace stepforge
