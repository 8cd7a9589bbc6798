// SPDX-License-Identifier: Apache-2.0
// Values as they are typed on a command line: TOML, with less punctuation.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stepforge/config/schema.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// `text` as one TOML value, or nothing if it is none; then `fault` (if given) says why.
std::optional<ConfigValue> parse_toml_word(std::string_view text, std::string* fault = nullptr);

/// `text` as a value for `field`: a string needs no quotes, a list of one line no brackets ("1,3,5"). What is
/// no TOML becomes a string, for the schema to refuse, unless it opens a bracket or a quote: then there is no
/// value, and `fault` says why.
std::optional<ConfigValue> override_value(const Field& field, std::string_view text, std::string& fault);

}  // namespace stepforge
