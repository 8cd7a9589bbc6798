// SPDX-License-Identifier: Apache-2.0
// Values written as TOML.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/config/schema.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// The shortest text that reads back to the same number: "8", "0.1", "8e-4".
std::string number_text(double value);

/// As number_text, but always a TOML float: "8.0".
std::string toml_float(double value);

/// A TOML basic string with its quotes.
std::string toml_string(std::string_view text);

/// The value in `slot` of `field`, inline: `[1, 2]`, `{ type = "none", factor = 8.0 }`.
std::string toml_value(const Field& field, const FieldSlot& slot);

/// The value a field has when nothing sets it. `schema` is the one that holds `field`.
std::string default_value(const TableSchema& schema, const Field& field);

/// A parsed value as TOML.
std::string toml_value(const ConfigValue& value);

/// The same for an error message, cut at 60 characters.
std::string shown_value(const ConfigValue& value);

}  // namespace stepforge
