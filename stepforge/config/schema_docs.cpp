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
    case FieldType::numbers:
      return "list of numbers";
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
          .doc = std::string(field.doc)};
}

/// Appends the fields of `schema`; `prefix` is its path in the section: "", "rope_scaling.", "sources[].".
void collect(const TableSchema& schema, const std::string& section, const std::string& prefix,
             std::vector<FieldInfo>& infos) {
  for (const Field& field : schema.fields()) {
    infos.push_back(info_of(schema, field, section, prefix + field.name));
    if (!field.table || field.is_recursive) continue;
    collect(*field.table, section, prefix + field.name + (field.type == FieldType::tables ? "[]." : "."),
            infos);
  }
}

/// The range or the choices, whichever the field has.
std::string accepted_text(const FieldInfo& info) {
  return info.choices.empty() ? info.range : join(info.choices, ", ");
}

/// Breaks `text` into lines of at most `width` characters, each indented by `indent` spaces.
std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (indent + line.size() + 1 + space > width) end_line();
    line += (line.empty() ? "" : " ") + std::string(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  end_line();
  return out;
}

std::string field_help(const FieldInfo& info, size_t width) {
  std::vector<std::string> notes;
  if (!accepted_text(info).empty()) notes.push_back(accepted_text(info));
  if (!info.unit.empty()) notes.push_back(info.unit);
  if (notes.empty()) notes.push_back(info.type_name);
  const std::string value = info.default_value.empty() ? "" : format(" = {}", info.default_value);
  return format("  {}{}\n", info.path(), value) +
         wrapped(format("{} ({})", info.doc, join(notes, "; ")), 6, width);
}

/// All fields if `name` is "", else the fields of that section, or that field with its nested fields.
std::vector<FieldInfo> fields_named(std::string_view name, const TableSchema& schema) {
  std::vector<FieldInfo> infos = all_fields(schema);
  std::vector<std::string> names;
  for (const Field& field : schema.fields()) names.push_back(field.name);
  for (const FieldInfo& info : infos) names.push_back(info.path());
  std::erase_if(infos, [&](const FieldInfo& info) {
    const std::string path = info.path();
    return !(name.empty() || info.section == name || path == name || path.starts_with(format("{}.", name)) ||
             path.starts_with(format("{}[].", name)));
  });
  if (!infos.empty()) return infos;
  const std::string near = did_you_mean(name, names);
  throw UsageError(format(
      "the configuration has no section or field \"{}\"{}", name,
      near.empty() ? "; `stepforge config schema` lists them" : format("; did you mean \"{}\"?", near)));
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

std::vector<FieldInfo> all_fields(const TableSchema& schema) {
  std::vector<FieldInfo> infos;
  for (const Field& field : schema.fields()) {
    if (field.type != FieldType::table) infos.push_back(info_of(schema, field, "", field.name));
  }
  for (const Field& field : schema.fields()) {
    if (field.type == FieldType::table) collect(*field.table, field.name, "", infos);
  }
  return infos;
}

std::string schema_help(std::string_view name, size_t width, const TableSchema& schema) {
  std::string out;
  std::string section;
  for (const FieldInfo& info : fields_named(name, schema)) {
    if (info.section != section && name.find('.') == std::string_view::npos) {
      section = info.section;
      out += format("{}[{}]  {}\n", out.empty() ? "" : "\n", section, schema.find(section)->doc);
    }
    out += field_help(info, width);
  }
  return out;
}

std::string schema_markdown(const TableSchema& schema) {
  std::string out;
  std::vector<FieldInfo> infos;
  const auto end_section = [&](const std::string& section) {
    if (!section.empty()) out += format("\n## [{}]\n\n{}\n\n", section, schema.find(section)->doc);
    out += markdown_table(infos);
    infos.clear();
  };
  std::string section;
  for (const FieldInfo& info : all_fields(schema)) {
    if (info.section != section) {
      end_section(section);
      section = info.section;
    }
    infos.push_back(info);
  }
  end_section(section);
  return out;
}

}  // namespace stepforge
