// SPDX-License-Identifier: Apache-2.0
// A value as it stands in a TOML text, with its place: what the TOML reader produces and the schema judges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/error.h"

namespace stepforge {

/// A place in a text, counted from 1; {0, 0} where there is none.
struct TextPosition {
  int line = 0;
  int column = 0;
};

struct ConfigEntry;

struct ConfigValue {
  enum class Kind { boolean, integer, number, text, list, table, date };

  Kind kind = Kind::text;
  TextPosition position;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0.0;
  std::string text;
  std::vector<ConfigValue> list;
  std::vector<ConfigEntry> table;  ///< In the order of the text.

  /// The value under `key` of a table, or nullptr.
  const ConfigValue* find(std::string_view key) const;
};

struct ConfigEntry {
  std::string key;
  TextPosition position;
  ConfigValue value;
};

/// The text is not TOML; what() says why, without the place.
class TomlError : public FormatError {
 public:
  TomlError(const std::string& message, TextPosition position) : FormatError(message), position_(position) {}
  TextPosition position() const { return position_; }

 private:
  TextPosition position_;
};

/// The table that `text` writes down. Throws TomlError; a duplicate key is one.
ConfigValue parse_toml(std::string_view text);

}  // namespace stepforge
