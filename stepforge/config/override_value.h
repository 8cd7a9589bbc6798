// SPDX-License-Identifier: Apache-2.0
// Parses values given on the command line: TOML with optional quotes and brackets.
#pragma once

#include <string_view>

#include "stepforge/config/schema.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// Parses `text` as one TOML value. Throws TomlError.
ConfigValue parse_toml_value(std::string_view text);

/// Parses `text` as a value for `field`: strings need no quotes, and lists of numbers or strings no brackets
/// ("1,3,5"). Text that is not TOML becomes a string, which the schema then refuses; but if it starts with a
/// bracket or a quote, throws TomlError.
ConfigValue override_value(const Field& field, std::string_view text);

}  // namespace stepforge
