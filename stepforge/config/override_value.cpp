// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/override_value.h"

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

bool starts_with_punctuation(std::string_view text) {
  return !text.empty() && std::string_view("[{\"'").find(text.front()) != std::string_view::npos;
}

/// Uses the TOML parser too, so that text that is not UTF-8 is refused.
ConfigValue bare_string(std::string_view text) {
  return parse_toml_value(toml_string(text));
}

ConfigValue bare_list(const Field& field, std::string_view text) {
  ConfigValue list;
  list.kind = ConfigValue::Kind::list;
  Field element = field;
  element.type = field.type == FieldType::integers  ? FieldType::integer
                 : field.type == FieldType::numbers ? FieldType::number
                                                    : FieldType::text;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    list.list.push_back(override_value(element, item));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return list;
}

}  // namespace

ConfigValue parse_toml_value(std::string_view text) {
  ConfigValue root = parse_toml(format("value = {}\n", text));
  if (root.table.size() != 1 || root.table.front().key != "value") throw TomlError("more than one value", {});
  return std::move(root.table.front().value);
}

ConfigValue override_value(const Field& field, std::string_view text) {
  const bool is_text = field.type == FieldType::text || field.type == FieldType::choice;
  if (is_text && !starts_with_punctuation(text)) return bare_string(text);
  if (is_list(field.type) && !text.starts_with('[')) return bare_list(field, text);
  try {
    return parse_toml_value(text);
  } catch (const TomlError&) {
    if (starts_with_punctuation(text)) throw;
    return bare_string(text);
  }
}

}  // namespace stepforge
