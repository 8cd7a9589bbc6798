// SPDX-License-Identifier: Apache-2.0
// The only file that includes toml++.
#include <algorithm>

#include <toml++/toml.h>

#include "stepforge/base/format.h"
#include "stepforge/config/value.h"

namespace stepforge {

namespace {

constexpr int kMaxKeyParts = 32;

/// Refuses keys with too many parts ("a.a.a.a…"): toml++ limits the depth of brackets but not of keys, and
/// destroys the nested tables recursively.
class KeyDepthCheck {
 public:
  explicit KeyDepthCheck(std::string_view text) : text_(text) {}

  void run() {
    while (at_ < text_.size()) {
      const char character = text_[at_];
      if (character == '"' || character == '\'') {
        skip_string(character);
      } else if (character == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        count(character);
        ++at_;
      }
    }
  }

 private:
  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multiline = text_.substr(at_, 3) == triple;
    at_ += multiline ? 3 : 1;
    while (at_ < text_.size()) {
      if (text_[at_] == '\\' && quote == '"') {
        at_ += 2;
      } else if (multiline && text_.substr(at_, 3) == triple) {
        at_ += 3;
        return;
      } else if (!multiline && (text_[at_] == quote || text_[at_] == '\n')) {
        ++at_;
        return;
      } else {
        ++at_;
      }
    }
  }

  void count(char character) {
    if (character == '.') {
      ++parts_;
    } else if (character == '\n' || std::string_view(",=[]{}").find(character) != std::string_view::npos) {
      parts_ = 0;
    }
    if (parts_ < kMaxKeyParts) return;
    const auto line = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n') + 1;
    throw TomlError(format("a key of more than {} parts", kMaxKeyParts), {static_cast<int>(line), 1});
  }

  std::string_view text_;
  size_t at_ = 0;
  int parts_ = 0;
};

TextPosition position_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

ConfigValue convert(const toml::node& node) {
  ConfigValue value;
  value.position = position_of(node.source());
  if (const auto* table = node.as_table()) {
    value.kind = ConfigValue::Kind::table;
    for (const auto& [key, child] : *table) {
      value.table.push_back({std::string(key.str()), position_of(key.source()), convert(child)});
    }
    std::ranges::sort(value.table, {}, &ConfigEntry::position);
  } else if (const auto* list = node.as_array()) {
    value.kind = ConfigValue::Kind::list;
    for (const auto& child : *list) value.list.push_back(convert(child));
  } else if (const auto* text = node.as_string()) {
    value.kind = ConfigValue::Kind::text;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = ConfigValue::Kind::integer;
    value.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.kind = ConfigValue::Kind::number;
    value.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = ConfigValue::Kind::boolean;
    value.boolean = boolean->get();
  } else {
    value.kind = ConfigValue::Kind::date;
  }
  return value;
}

}  // namespace

const ConfigValue* ConfigValue::find(std::string_view key) const {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const ConfigEntry& entry) { return entry.key == key; });
  return found == table.end() ? nullptr : &found->value;
}

ConfigValue parse_toml(std::string_view text) {
  KeyDepthCheck(text).run();
  try {
    return convert(toml::parse(text, std::string_view("config")));
  } catch (const toml::parse_error& error) {
    const std::string reason(error.description());
    const bool duplicate = reason.find("redefine") != std::string::npos;
    throw TomlError(reason + (duplicate ? "; a key may appear only once" : ""), position_of(error.source()));
  }
}

}  // namespace stepforge
