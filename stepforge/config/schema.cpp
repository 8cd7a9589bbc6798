// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

const Field* TableSchema::find(std::string_view name) const {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& field) { return field.name == name; });
  return found == fields_.end() ? nullptr : &*found;
}

std::vector<std::string> TableSchema::names() const {
  std::vector<std::string> names;
  for (const Field& field : fields_) names.push_back(field.name);
  return names;
}

std::string dotted(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : format("{}.{}", section, name);
}

namespace {

std::optional<size_t> list_index(std::string_view text) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return index;
}

/// Removes the part before the first dot from `rest` and returns it.
std::string_view next_part(std::string_view& rest) {
  const size_t dot = rest.find('.');
  const std::string_view part = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  return part;
}

/// Large powers in short: "2^20", "1e12".
std::string limit_text(double limit) {
  constexpr double kSmallestShortened = 65536;
  if (limit < kSmallestShortened) return number_text(limit);
  int exponent = 0;
  if (std::frexp(limit, &exponent) == 0.5) return format("2^{}", exponent - 1);
  const double power = std::round(std::log10(limit));
  return limit == std::pow(10.0, power) ? format("1e{}", static_cast<int>(power)) : number_text(limit);
}

std::string quoted_choices(const FieldRules& rules) {
  std::vector<std::string> choices;
  for (const std::string_view choice : rules.choices) choices.push_back(format("\"{}\"", choice));
  return join(choices, ", ");
}

}  // namespace

FieldRef find_field(const TableSchema& schema, void* object, std::string_view dotted_name, bool may_append) {
  FieldRef ref{.owner = object, .schema = &schema};
  std::string_view rest = dotted_name;
  while (true) {
    const std::string_view name = next_part(rest);
    const Field* field = ref.schema->find(name);
    if (field == nullptr) {
      ref.unknown = name;
      return ref;
    }
    ref.known = dotted(ref.known, name);
    if (rest.empty()) {
      ref.field = field;
      return ref;
    }
    const FieldSlot slot = field->slot(ref.owner);
    if (const auto* table = std::get_if<TableSlot>(&slot)) {
      ref.owner = table->object;
    } else {
      const auto* list = std::get_if<TableListSlot>(&slot);
      const std::string_view part = next_part(rest);
      const auto index = list_index(part);
      const size_t size = list == nullptr ? 0 : list->size(list->list);
      if (list == nullptr || !index || *index > size || (*index == size && !may_append))
        return {.known = ref.known, .unknown = std::string(part)};
      if (*index == size) list->resize(list->list, size + 1);
      ref.known = dotted(ref.known, part);
      if (rest.empty()) {
        ref.field = field;
        ref.element = index;
        return ref;
      }
      ref.owner = list->at(list->list, *index);
    }
    ref.schema = field->table.get();
  }
}

FieldSlot slot_of(const FieldRef& ref) {
  FieldSlot slot = ref.field->slot(ref.owner);
  if (!ref.element) return slot;
  const auto& list = std::get<TableListSlot>(slot);
  return TableSlot{list.at(list.list, *ref.element)};
}

std::string range_text(const FieldRules& rules) {
  std::string range;
  if (rules.min && rules.max) {
    range = format("{} to {}", limit_text(*rules.min), limit_text(*rules.max));
  } else {
    std::vector<std::string> limits;
    if (rules.min) limits.push_back("at least " + limit_text(*rules.min));
    if (rules.above) limits.push_back("above " + limit_text(*rules.above));
    if (rules.max) limits.push_back("at most " + limit_text(*rules.max));
    if (rules.below) limits.push_back("below " + limit_text(*rules.below));
    range = join(limits, " and ");
  }
  return rules.special ? format("{}, or {}", limit_text(*rules.special), range) : range;
}

bool in_range(const FieldRules& rules, double value) {
  if (!std::isfinite(value)) return false;
  if (rules.special && value == *rules.special) return true;
  return (!rules.min || value >= *rules.min) && (!rules.max || value <= *rules.max) &&
         (!rules.above || value > *rules.above) && (!rules.below || value < *rules.below);
}

std::string expected_text(const Field& field) {
  const std::string range = range_text(field.rules);
  const std::string limits = range.empty() ? "" : format(" ({})", range);
  switch (field.type) {
    case FieldType::boolean:
      return "true or false";
    case FieldType::integer:
      return "an integer" + limits;
    case FieldType::number:
      return "a number" + limits;
    case FieldType::choice:
      return "one of " + quoted_choices(field.rules);
    case FieldType::choices:
      return "a list of any of " + quoted_choices(field.rules);
    case FieldType::text:
      if (!field.rules.choices.empty()) return "one of " + quoted_choices(field.rules);
      return field.rules.non_empty ? "a non-empty string" : "a string";
    case FieldType::integers:
      return "a list of integers" + (range.empty() ? "" : format(" (each {})", range));
    case FieldType::numbers:
      return "a list of numbers" + (range.empty() ? "" : format(" (each {})", range));
    case FieldType::texts:
      return "a list of strings";
    case FieldType::table:
      return "a table";
    case FieldType::tables:
      return "a list of tables";
  }
  return "";
}

}  // namespace stepforge
