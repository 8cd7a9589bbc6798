// SPDX-License-Identifier: Apache-2.0
// A pattern as tokenizer.json writes it: {"Regex": "..."} or {"String": "..."}.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/base/json_reader.h"
#include "stepforge/text/splitter.h"

namespace stepforge {

/// Throws FormatError naming file and component for another form or an unsupported regular expression.
SplitPattern read_text_pattern(const JsonReader& pattern);

/// The regular expression that matches exactly `text`.
std::string literal_pattern(std::string_view text);

/// A text of one character. Throws FormatError.
std::string read_character(const JsonReader& value);

}  // namespace stepforge
