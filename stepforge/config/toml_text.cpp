// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/toml_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "stepforge/base/format.h"

namespace stepforge {

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end);
  // "8e-04" becomes "8e-4", and integers below 1e15 are written without an exponent.
  if (const size_t exponent = text.find('e'); exponent != std::string::npos) {
    if (value == std::floor(value) && std::abs(value) < 1e15)
      return format("{}", static_cast<int64_t>(value));
    size_t digits = exponent + 1;
    if (text[digits] == '+') text.erase(digits, 1);
    if (text[digits] == '-') ++digits;
    while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  }
  return text;
}

std::string toml_float(double value) {
  const std::string text = number_text(value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    const auto byte = static_cast<unsigned char>(character);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    switch (character) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          out += format("\\u{:04X}", static_cast<unsigned>(byte));
        } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F steer terminals too
          out += format("\\u{:04X}", static_cast<unsigned>(next));
          ++i;
        } else {
          out += character;
        }
    }
  }
  return out + "\"";
}

namespace {

std::string bracketed(const std::vector<std::string>& parts, std::string_view open, std::string_view close) {
  return std::string(open) + join(parts, ", ") + std::string(close);
}

std::string toml_table(const TableSchema& schema, void* object) {
  std::vector<std::string> parts;
  for (const Field& field : schema.fields()) {
    parts.push_back(format("{} = {}", field.name, toml_value(field, field.slot(object))));
  }
  return bracketed(parts, "{ ", " }");
}

struct ValueWriter {
  const Field& field;

  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const int64_t* value) const { return format("{}", *value); }
  std::string operator()(const double* value) const { return toml_float(*value); }
  std::string operator()(const std::string* value) const { return toml_string(*value); }
  std::string operator()(const std::vector<int64_t>* values) const {
    std::vector<std::string> parts;
    for (const int64_t value : *values) parts.push_back(format("{}", value));
    return bracketed(parts, "[", "]");
  }
  std::string operator()(const std::vector<double>* values) const {
    std::vector<std::string> parts;
    for (const double value : *values) parts.push_back(toml_float(value));
    return bracketed(parts, "[", "]");
  }
  std::string operator()(const std::vector<std::string>* values) const {
    std::vector<std::string> parts;
    for (const std::string& value : *values) parts.push_back(toml_string(value));
    return bracketed(parts, "[", "]");
  }
  std::string operator()(const ChoiceSlot& slot) const {
    std::vector<std::string> parts;
    for (const std::string_view name : slot.names(slot.value)) parts.push_back(toml_string(name));
    return field.type == FieldType::choices ? bracketed(parts, "[", "]") : parts.front();
  }
  std::string operator()(const TableSlot& table) const { return toml_table(*field.table, table.object); }
  std::string operator()(const TableListSlot& tables) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < tables.size(tables.list); ++i) {
      parts.push_back(toml_table(*field.table, tables.at(tables.list, i)));
    }
    return bracketed(parts, "[", "]");
  }
};

}  // namespace

std::string toml_value(const Field& field, const FieldSlot& slot) {
  return std::visit(ValueWriter{field}, slot);
}

std::string toml_value(const ConfigValue& value) {
  std::vector<std::string> parts;
  switch (value.kind) {
    case ConfigValue::Kind::boolean:
      return value.boolean ? "true" : "false";
    case ConfigValue::Kind::integer:
      return format("{}", value.integer);
    case ConfigValue::Kind::number:
      return toml_float(value.number);
    case ConfigValue::Kind::text:
      return toml_string(value.text);
    case ConfigValue::Kind::date:
      return "a date or time";
    case ConfigValue::Kind::list:
      for (const ConfigValue& item : value.list) parts.push_back(toml_value(item));
      return bracketed(parts, "[", "]");
    case ConfigValue::Kind::table:
      for (const ConfigEntry& entry : value.table)
        parts.push_back(entry.key + " = " + toml_value(entry.value));
      return bracketed(parts, "{ ", " }");
  }
  return "";
}

std::string default_value(const TableSchema& schema, const Field& field) {
  const std::shared_ptr<void> object = schema.make_default();
  return toml_value(field, field.slot(object.get()));
}

std::string shown_value(const ConfigValue& value) {
  constexpr size_t kMaxBytes = 60;
  std::string text = toml_value(value);
  if (text.size() <= kMaxBytes) return text;
  size_t end = kMaxBytes;
  // Do not cut inside a UTF-8 character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

}  // namespace stepforge
