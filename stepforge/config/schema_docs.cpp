// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/schema_docs.h"

#include <algorithm>
#include <map>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

std::string type_name(const Field& field) {
  switch (field.type) {
    case FieldType::boolean:
      return "boolean";
    case FieldType::integer:
      return "integer";
    case FieldType::number:
      return "number";
    case FieldType::text:
      return field.rules.choices.empty() ? "string" : "choice";
    case FieldType::integers:
      return "list of integers";
    case FieldType::texts:
      return "list of strings";
    case FieldType::choice:
      return "choice";
    case FieldType::choices:
      return "list of choices";
    case FieldType::table:
      return "table";
    case FieldType::tables:
      return "list of tables";
  }
  return "";
}

FieldInfo info_of(const TableSchema& schema, const Field& field, const std::string& section,
                  const std::string& name) {
  const FieldRules& rules = field.rules;
  return {.section = section,
          .name = name,
          .type = field.type,
          .type_name = type_name(field),
          .default_value = field.type == FieldType::table ? "" : default_value(schema, field),
          .unit = std::string(rules.unit),
          .range = range_text(rules),
          .choices = {rules.choices.begin(), rules.choices.end()},
          .doc = std::string(rules.doc)};
}

/// Adds the fields of `schema`, which stands at `prefix` ("rope_scaling.", "sources[].") of the section.
void collect(const TableSchema& schema, const std::string& section, const std::string& prefix,
             std::vector<FieldInfo>& infos) {
  for (const Field& field : schema.fields()) {
    infos.push_back(info_of(schema, field, section, prefix + field.name));
    if (!field.table) continue;
    collect(*field.table, section, prefix + field.name + (field.type == FieldType::tables ? "[]." : "."),
            infos);
  }
}

bool is_section(const Field& field) {
  return field.type == FieldType::table;
}

std::vector<FieldInfo> fields_of(const Field& section) {
  std::vector<FieldInfo> infos;
  collect(*section.table, section.name, "", infos);
  return infos;
}

std::vector<FieldInfo> top_fields() {
  std::vector<FieldInfo> infos;
  for (const Field& field : config_schema().fields()) {
    if (!is_section(field)) infos.push_back(info_of(config_schema(), field, "", field.name));
  }
  return infos;
}

/// The range or the choices, whichever the field has.
std::string accepted_text(const FieldInfo& info) {
  return info.choices.empty() ? info.range : join(info.choices, ", ");
}

std::string padded(std::string_view text, size_t width) {
  std::string out(text);
  if (out.size() < width) out.append(width - out.size(), ' ');
  return out;
}

std::string help_of(const std::vector<FieldInfo>& infos) {
  size_t width = 0;
  for (const FieldInfo& info : infos) width = std::max(width, info.path().size());
  std::string out;
  for (const FieldInfo& info : infos) {
    std::vector<std::string> notes;
    if (!info.default_value.empty()) notes.push_back("default " + info.default_value);
    if (!accepted_text(info).empty()) notes.push_back(accepted_text(info));
    if (!info.unit.empty()) notes.push_back(info.unit);
    out += format("  {}  {}{}\n", padded(info.path(), width), info.doc,
                  notes.empty() ? "" : format(" ({})", join(notes, "; ")));
  }
  return out;
}

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char character : text) {
    if (character == '|') out += '\\';
    out += character;
  }
  return out;
}

std::string markdown_table(const std::vector<FieldInfo>& infos) {
  std::string out = "| Key | Type | Default | Accepted | Meaning |\n|---|---|---|---|---|\n";
  for (const FieldInfo& info : infos) {
    const std::string accepted = accepted_text(info);
    const std::string unit = info.unit.empty() ? "" : format("{}{}", accepted.empty() ? "" : " ", info.unit);
    out += format("| `{}` | {} | {} | {}{} | {} |\n", info.name, info.type_name,
                  info.default_value.empty() ? "" : format("`{}`", info.default_value), accepted, unit,
                  markdown_cell(info.doc));
  }
  return out;
}

}  // namespace

std::vector<FieldInfo> all_fields() {
  std::vector<FieldInfo> infos = top_fields();
  for (const Field& field : config_schema().fields()) {
    if (!is_section(field)) continue;
    const std::vector<FieldInfo> inside = fields_of(field);
    infos.insert(infos.end(), inside.begin(), inside.end());
  }
  return infos;
}

std::string schema_help(std::string_view section) {
  const Field* field = config_schema().find(section);
  if (field != nullptr && is_section(*field)) {
    return format("[{}]  {}\n", field->name, field->rules.doc) + help_of(fields_of(*field));
  }
  if (!section.empty()) {
    const std::string near = did_you_mean(section, config_schema().names());
    throw UsageError(format("there is no section \"{}\" in the configuration{}", section,
                            near.empty() ? "" : format("; did you mean \"{}\"?", near)));
  }
  std::string out = help_of(top_fields());
  for (const Field& each : config_schema().fields()) {
    if (is_section(each)) out += format("  {}  {}\n", padded("[" + each.name + "]", 23), each.rules.doc);
  }
  return out;
}

std::string schema_markdown() {
  std::string out = markdown_table(top_fields());
  for (const Field& field : config_schema().fields()) {
    if (!is_section(field)) continue;
    out += format("\n## [{}]\n\n{}\n\n{}", field.name, field.rules.doc, markdown_table(fields_of(field)));
  }
  return out;
}

}  // namespace stepforge
