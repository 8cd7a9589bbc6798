// SPDX-License-Identifier: Apache-2.0
// The only file that includes yaml-cpp.
#include "stepforge/config/foreign_reader.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <yaml-cpp/yaml.h>

#include "stepforge/base/format.h"
#include "stepforge/base/json.h"

namespace stepforge {

namespace {

using Kind = ConfigValue::Kind;

constexpr int64_t kMaxBytes = int64_t{4} << 20;
constexpr int kMaxValues = 10000;  // YAML aliases can repeat the same list many times
constexpr int kMaxDepth = 16;

ConfigValue text_value(std::string text) {
  ConfigValue value;
  value.text = std::move(text);
  return value;
}

ConfigValue from_json(const Json& json) {
  ConfigValue value;
  if (json.is_object()) {
    value.kind = Kind::table;
    for (const auto& [key, child] : json.items()) value.table.push_back({key, {}, from_json(child)});
  } else if (json.is_array()) {
    value.kind = Kind::list;
    for (const Json& child : json) value.list.push_back(from_json(child));
  } else if (json.is_boolean()) {
    value.kind = Kind::boolean;
    value.boolean = json.get<bool>();
  } else if (json.is_number_integer()) {
    value.kind = Kind::integer;
    value.integer = json.get<int64_t>();
  } else if (json.is_number()) {
    value.kind = Kind::number;
    value.number = json.get<double>();
  } else if (json.is_string()) {
    value.text = json.get<std::string>();
  }
  return value;
}

template <typename Number>
bool read_number(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

/// A scalar without quotes: null, a boolean, a number or a text.
ConfigValue plain_scalar(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  ConfigValue value = text_value(lower == "null" || lower == "~" ? "" : text);
  if (lower == "true" || lower == "false") {
    value.kind = Kind::boolean;
    value.boolean = lower == "true";
  } else if (read_number(text, value.integer)) {
    value.kind = Kind::integer;
  } else if (std::isdigit(static_cast<unsigned char>(text.empty() ? ' ' : text.back())) != 0 &&
             read_number(text, value.number)) {
    value.kind = Kind::number;
  }
  return value;
}

class YamlTree {
 public:
  ConfigValue convert(const YAML::Node& node, int depth) {
    if (++values_ > kMaxValues || depth > kMaxDepth)
      throw FormatError("too many values, or too deeply nested");
    ConfigValue value;
    if (node.IsMap()) {
      value.kind = Kind::table;
      for (const auto& entry : node)
        value.table.push_back({entry.first.as<std::string>(), {}, convert(entry.second, depth + 1)});
    } else if (node.IsSequence()) {
      value.kind = Kind::list;
      for (const auto& child : node) value.list.push_back(convert(child, depth + 1));
    } else if (node.IsScalar()) {
      value = node.Tag() == "!" ? text_value(node.Scalar()) : plain_scalar(node.Scalar());
    }
    return value;
  }

 private:
  int values_ = 0;
};

ConfigValue require_table(ConfigValue value, const std::string& name) {
  if (value.kind != Kind::table) throw FormatError(format("{}: expected a table of keys and values", name));
  return value;
}

}  // namespace

ConfigValue yaml_scalar(const std::string& text) {
  return plain_scalar(text);
}

ConfigValue parse_config_json(std::string_view text, const std::string& name) {
  return require_table(from_json(parse_json(text, name, {.max_bytes = kMaxBytes, .max_depth = kMaxDepth})),
                       name);
}

ConfigValue parse_config_yaml(std::string_view text, const std::string& name) {
  try {
    return require_table(YamlTree().convert(YAML::Load(std::string(text)), 0), name);
  } catch (const YAML::Exception& error) {
    throw FormatError(
        format("{}:{}:{}: not valid YAML: {}", name, error.mark.line + 1, error.mark.column + 1, error.msg));
  }
}

bool looks_like_yaml(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#') continue;
    line.remove_prefix(first);
    if (line.starts_with("- ") || line.starts_with("---")) return true;
    const size_t key_end = line.find_first_of(":=");
    return key_end != std::string_view::npos && line[key_end] == ':' && !line.starts_with('[') &&
           !line.starts_with('{') &&
           (key_end + 1 == line.size() || line[key_end + 1] == ' ' || line[key_end + 1] == '\r');
  }
  return false;
}

}  // namespace stepforge
