// SPDX-License-Identifier: Apache-2.0
// Configuration files in JSON and YAML as the tree that the TOML reader makes.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/config/value.h"

namespace stepforge {

/// Each throws FormatError naming `name` if the text is malformed or its top is not a table.
ConfigValue parse_config_json(std::string_view text, const std::string& name);
ConfigValue parse_config_yaml(std::string_view text, const std::string& name);

/// Whether the first line that says anything is `key: value` or `- item`, as in YAML, and not TOML.
bool looks_like_yaml(std::string_view text);

}  // namespace stepforge
