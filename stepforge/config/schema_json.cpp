// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/config/schema_docs.h"

namespace stepforge {

namespace {

Json number_json(const Field& field, double value) {
  if (field.type == FieldType::number || field.type == FieldType::numbers) return value;
  return static_cast<int64_t>(value);
}

/// The type and limits of the field's value, or of one element if it is a list.
Json element_json(const Field& field) {
  const FieldRules& rules = field.rules;
  Json json;
  switch (field.type) {
    case FieldType::boolean:
      json["type"] = "boolean";
      break;
    case FieldType::integer:
    case FieldType::integers:
      json["type"] = "integer";
      break;
    case FieldType::number:
    case FieldType::numbers:
      json["type"] = "number";
      break;
    default:
      json["type"] = "string";
  }
  if (rules.min) json["minimum"] = number_json(field, *rules.min);
  if (rules.max) json["maximum"] = number_json(field, *rules.max);
  if (rules.above) json["exclusiveMinimum"] = number_json(field, *rules.above);
  if (rules.below) json["exclusiveMaximum"] = number_json(field, *rules.below);
  if (rules.non_empty) json["minLength"] = 1;
  for (const std::string_view choice : rules.choices) json["enum"].push_back(choice);
  if (!rules.special) return json;
  Json either;
  either["anyOf"] = Json::array({Json{{"const", number_json(field, *rules.special)}}, json});
  return either;
}

struct DefaultJson {
  bool is_list;

  Json operator()(const bool* value) const { return *value; }
  Json operator()(const int64_t* value) const { return *value; }
  Json operator()(const double* value) const { return *value; }
  Json operator()(const std::string* value) const { return *value; }
  Json operator()(const std::vector<int64_t>* value) const { return *value; }
  Json operator()(const std::vector<double>* value) const { return *value; }
  Json operator()(const std::vector<std::string>* value) const { return *value; }
  Json operator()(const ChoiceSlot& slot) const {
    const std::vector<std::string_view> names = slot.names(slot.value);
    return is_list ? Json(names) : Json(names.front());
  }
  Json operator()(const TableSlot&) const { return Json::object(); }
  Json operator()(const TableListSlot&) const { return Json::array(); }
};

Json table_json(const TableSchema& schema);

Json field_json(const Field& field, void* defaults) {
  Json json;
  if (field.type == FieldType::table) {
    json = table_json(*field.table);
  } else if (field.type == FieldType::tables) {
    json["type"] = "array";
    json["items"] = table_json(*field.table);
  } else if (is_list(field.type)) {
    json["type"] = "array";
    json["items"] = element_json(field);
  } else {
    json = element_json(field);
  }
  const FieldRules& rules = field.rules;
  json["description"] =
      rules.unit.empty() ? std::string(field.doc) : format("{} Unit: {}.", field.doc, rules.unit);
  if (field.type != FieldType::table)
    json["default"] = std::visit(DefaultJson{is_list(field.type)}, field.slot(defaults));
  return json;
}

Json table_json(const TableSchema& schema) {
  Json json;
  json["type"] = "object";
  json["additionalProperties"] = false;
  json["properties"] = Json::object();
  const std::shared_ptr<void> defaults = schema.make_default();
  for (const Field& field : schema.fields())
    json["properties"][field.name] = field_json(field, defaults.get());
  return json;
}

}  // namespace

Json schema_json(std::string_view name, const TableSchema& schema) {
  if (!name.empty()) {
    const std::shared_ptr<void> defaults = schema.make_default();
    const FieldRef ref = find_field(schema, defaults.get(), name.substr(0, name.find("[]")));
    if (ref.field == nullptr) schema_help(name, 0, schema);  // throws and suggests a similar name
    return field_json(*ref.field, ref.owner);
  }
  Json json;
  json["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  json["title"] = "Stepforge configuration";
  const Json table = table_json(schema);
  for (const auto& [key, value] : table.items()) json[key] = value;
  return json;
}

}  // namespace stepforge
