// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

void TableSchema::add(std::string_view name, FieldType type, FieldRules rules,
                      std::shared_ptr<const TableSchema> table, std::function<FieldSlot(void*)> slot) {
  fields_.push_back({std::string(name), type, std::move(rules), std::move(table), std::move(slot)});
}

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

/// An index into a list, if `word` is one that fits ("0", "12").
std::optional<size_t> list_index(std::string_view word) {
  size_t index = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), index);
  if (fault != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return index;
}

/// Cuts the part before the first dot off `rest`.
std::string_view next_part(std::string_view& rest) {
  const size_t dot = rest.find('.');
  const std::string_view part = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  return part;
}

/// Round numbers in short: "2^20", "1e12".
std::string limit_text(double limit) {
  constexpr double smallest_round = 65536;
  int exponent = 0;
  if (limit >= smallest_round && std::frexp(limit, &exponent) == 0.5) return format("2^{}", exponent - 1);
  const double power = std::round(std::log10(std::max(limit, 1.0)));
  if (limit >= smallest_round && limit == std::pow(10.0, power))
    return format("1e{}", static_cast<int>(power));
  return number_text(limit);
}

std::string quoted_choices(const FieldRules& rules) {
  std::vector<std::string> choices;
  for (const std::string_view choice : rules.choices) choices.push_back(format("\"{}\"", choice));
  return join(choices, ", ");
}

}  // namespace

FieldRef find_field(const TableSchema& schema, void* object, std::string_view dotted_name, bool may_append) {
  FieldRef place{
      .field = nullptr, .owner = object, .element = {}, .schema = &schema, .known = {}, .unknown = {}};
  std::string_view rest = dotted_name;
  while (true) {
    const std::string_view name = next_part(rest);
    const Field* field = place.schema->find(name);
    if (field == nullptr) {
      place.unknown = name;
      return place;
    }
    const std::string path = dotted(place.known, name);
    std::string_view after = rest;
    if (after.empty()) {
      place.field = field;
      place.known = path;
      return place;
    }
    const FieldSlot slot = field->slot(place.owner);
    if (const auto* list = std::get_if<TableListSlot>(&slot)) {
      const std::string_view word = next_part(after);
      const auto index = list_index(word);
      const size_t size = list->size(list->list);
      if (!index || *index > size || (*index == size && !may_append)) {
        return {.field = nullptr,
                .owner = nullptr,
                .element = {},
                .schema = nullptr,
                .known = path,
                .unknown = std::string(word)};
      }
      if (*index == size) list->resize(list->list, size + 1);
      place.known = dotted(path, word);
      if (after.empty()) {
        place.field = field;
        place.element = index;
        return place;
      }
      place.owner = list->at(list->list, *index);
    } else if (const auto* table = std::get_if<TableSlot>(&slot)) {
      place.known = path;
      place.owner = table->object;
    } else {
      return {.field = nullptr,
              .owner = nullptr,
              .element = {},
              .schema = nullptr,
              .known = path,
              .unknown = std::string(next_part(after))};
    }
    place.schema = field->table.get();
    rest = after;
  }
}

FieldSlot slot_of(const FieldRef& place) {
  FieldSlot slot = place.field->slot(place.owner);
  if (!place.element) return slot;
  const auto& list = std::get<TableListSlot>(slot);
  return TableSlot{list.at(list.list, *place.element)};
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
      return field.rules.non_empty ? "a string that is not empty" : "a string";
    case FieldType::integers:
      return "a list of integers" + (range.empty() ? "" : format(" (each {})", range));
    case FieldType::texts:
      return "a list of strings";
    case FieldType::table:
      return "a table of keys";
    case FieldType::tables:
      return "a list of tables";
  }
  return "";
}

}  // namespace stepforge
