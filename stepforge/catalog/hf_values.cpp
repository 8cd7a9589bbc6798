// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_values.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/schema.h"

namespace stepforge {

namespace {

FieldRef find_model_field(Config& config, std::string_view field) {
  const FieldRef ref = find_field(config_schema(), &config, format("model.{}", field));
  if (ref.field == nullptr)  // a row of a plug-in
    throw UsageError(format("a key of config.json is to set model.{}, but there is no such field", field));
  return ref;
}

void require_accepted(const JsonReader& object, const HfField& field) {
  const Json accepted = Json::parse(field.accepted);
  const Json& value = object.json().at(field.key);
  const auto is_accepted = [&](const Json& item) { return std::ranges::count(accepted, item) > 0; };
  if (!(value.is_array() ? std::ranges::all_of(value, is_accepted) : is_accepted(value)))
    object.refuse(field.key, format("only {} is supported", accepted.front().dump()));
}

}  // namespace

void set_field(const JsonReader& value, std::string_view name, Config& config, int64_t least) {
  const FieldRef ref = find_model_field(config, name);
  const FieldSlot slot = slot_of(ref);
  const FieldRules& rules = ref.field->rules;
  const auto require_in_range = [&](const JsonReader& number) {
    if (!in_range(rules, number.number())) number.refuse(format("must be {}", range_text(rules)));
  };
  if (auto* const* list = std::get_if<std::vector<double>*>(&slot)) {
    (*list)->clear();
    for (std::size_t i = 0; i < value.size(); ++i) {
      require_in_range(value.at(i));
      (*list)->push_back(value.at(i).number());
    }
    return;
  }
  if (auto* const* boolean = std::get_if<bool*>(&slot)) {
    **boolean = value.boolean();
    return;
  }
  if (auto* const* integer = std::get_if<int64_t*>(&slot))
    **integer = value.integer(least);
  else
    *std::get<double*>(slot) = value.number();
  require_in_range(value);
}

void copy_field(Config& from, Config& to, std::string_view name) {
  const FieldSlot target = slot_of(find_model_field(to, name));
  std::visit(
      [&](auto source) {
        if constexpr (std::is_pointer_v<decltype(source)>) *std::get<decltype(source)>(target) = *source;
      },
      slot_of(find_model_field(from, name)));
}

Json field_json(Config& config, const HfField& field) {
  Json json;
  std::visit(
      [&](auto slot) {
        if constexpr (std::is_pointer_v<decltype(slot)>) json = *slot;
      },
      slot_of(find_model_field(config, field.field)));
  if (field.nullable && json.is_number() && json.get<double>() == 0.0) json = nullptr;
  return json;
}

void read_fields(const JsonReader& object, std::span<const HfField> rows, Config& config) {
  for (const auto& [key, value] : object.object().json().items()) {
    const HfField* field = find_hf_field(rows, key);
    if (field == nullptr) {
      if (value.is_null()) continue;
      object.refuse(key,
                    "unknown setting, which may change what the model computes; "
                    "remove it if transformers ignores it");
    }
    if (!field->accepted.empty()) require_accepted(object, *field);
    if (field->field.empty() || value.is_null()) continue;
    const FieldType type = find_model_field(config, field->field).field->type;
    if (is_list(type) && type != FieldType::numbers) continue;
    set_field(object[key], field->field, config, field->zero ? 0 : 1);
    if (field->nullable && value.is_number() && value.get<double>() == 0.0)
      object.refuse(key, "must be above 0; null stands for none");
  }
}

}  // namespace stepforge
