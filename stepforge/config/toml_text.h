// SPDX-License-Identifier: Apache-2.0
// Formats values as TOML.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/config/schema.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// The shortest text that parses to the same number: "8", "0.1", "8e-4".
std::string number_text(double value);

/// Like number_text, but always a TOML float: "8.0".
std::string toml_float(double value);

/// A quoted TOML string.
std::string toml_string(std::string_view text);

/// The value in `slot`, a slot of `field`, on one line: `[1, 2]`, `{ type = "none", factor = 8.0 }`.
std::string toml_value(const Field& field, const FieldSlot& slot);

/// The default of `field`, a field of `schema`.
std::string default_value(const TableSchema& schema, const Field& field);

/// The parsed value on one line.
std::string toml_value(const ConfigValue& value);

/// The same for error messages: at most 60 bytes, then "...".
std::string shown_value(const ConfigValue& value);

}  // namespace stepforge
