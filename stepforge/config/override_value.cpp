// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/override_value.h"

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

bool opens_punctuation(std::string_view text) {
  return !text.empty() && std::string_view("[{\"'").find(text.front()) != std::string_view::npos;
}

/// Goes through the TOML reader too, so that text that is not UTF-8 is refused.
std::optional<ConfigValue> bare_string(std::string_view text, std::string& fault) {
  return parse_toml_word(toml_string(text), &fault);
}

std::optional<ConfigValue> bare_list(const Field& field, std::string_view text, std::string& fault) {
  ConfigValue list;
  list.kind = ConfigValue::Kind::list;
  Field element = field;
  element.type = field.type == FieldType::integers ? FieldType::integer : FieldType::text;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view word = text.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    auto value = override_value(element, word, fault);
    if (!value) return std::nullopt;
    list.list.push_back(std::move(*value));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return list;
}

}  // namespace

std::optional<ConfigValue> parse_toml_word(std::string_view text, std::string* fault) {
  std::string reason = "more than one value";
  try {
    const ConfigValue table = parse_toml(format("value = {}\n", text));
    if (table.table.size() == 1 && table.table.front().key == "value") {
      ConfigValue value = table.table.front().value;
      return value;
    }
  } catch (const TomlError& error) {
    reason = error.what();
  }
  if (fault != nullptr) *fault = reason;
  return std::nullopt;
}

std::optional<ConfigValue> override_value(const Field& field, std::string_view text, std::string& fault) {
  const bool is_text = field.type == FieldType::text || field.type == FieldType::choice;
  if (is_text && !opens_punctuation(text)) return bare_string(text, fault);
  if (is_list(field.type) && !text.starts_with('[')) return bare_list(field, text, fault);
  auto value = parse_toml_word(text, &fault);
  if (value || opens_punctuation(text)) return value;
  return bare_string(text, fault);
}

}  // namespace stepforge
