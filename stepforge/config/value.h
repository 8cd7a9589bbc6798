// SPDX-License-Identifier: Apache-2.0
// A parsed TOML value with its position in the text: what the TOML reader returns and the schema checks.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/error.h"

namespace stepforge {

/// A position in a text, counted from 1; {0, 0} if unknown.
struct TextPosition {
  int line = 0;
  int column = 0;

  auto operator<=>(const TextPosition&) const = default;
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
  std::vector<ConfigEntry> table;  ///< In the order of their positions.

  /// The value of `key` in this table, or nullptr.
  const ConfigValue* find(std::string_view key) const;
};

struct ConfigEntry {
  std::string key;
  TextPosition position;
  ConfigValue value;
};

/// The text is not valid TOML. what() does not include the position.
class TomlError : public FormatError {
 public:
  TomlError(const std::string& message, TextPosition position) : FormatError(message), position_(position) {}
  TextPosition position() const { return position_; }

 private:
  TextPosition position_;
};

/// Parses `text` into a table. Throws TomlError, also for duplicate keys.
ConfigValue parse_toml(std::string_view text);

}  // namespace stepforge
