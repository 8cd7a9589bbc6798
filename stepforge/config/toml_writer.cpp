// SPDX-License-Identifier: Apache-2.0
// A whole configuration as TOML.
#include <functional>

#include "stepforge/base/format.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// The comments to write; none by default.
struct Comments {
  bool docs = false;  ///< The description above each section and field.
  /// If set, the comment after each field, written instead of the descriptions.
  std::function<std::string(const std::string& path)> after = {};
};

std::string doc_comment(const Field& field) {
  std::vector<std::string> notes;
  if (!field.rules.unit.empty()) notes.emplace_back(field.rules.unit);
  if (!field.rules.choices.empty()) {
    notes.push_back(join({field.rules.choices.begin(), field.rules.choices.end()}, ", "));
  } else if (const std::string range = range_text(field.rules); !range.empty()) {
    notes.push_back(range);
  }
  return format("# {}{}\n", field.doc, notes.empty() ? "" : format(" ({})", join(notes, "; ")));
}

std::string field_line(const Field& field, void* owner, const std::string& path, const Comments& comments) {
  const std::string line = format("{} = {}", field.name, toml_value(field, field.slot(owner)));
  if (!comments.after) return (comments.docs ? doc_comment(field) : "") + line + "\n";
  return format("{:<40}  # {}\n", line, comments.after(path));
}

std::string write(Config config, const Comments& comments) {
  std::string out;
  const auto& fields = schema_of(config).fields();
  for (const Field& field : fields) {
    if (field.type != FieldType::table) out += field_line(field, &config, field.name, comments);
  }
  for (const Field& section : fields) {
    if (section.type != FieldType::table) continue;
    out += "\n" + (comments.docs ? format("# {}\n", section.doc) : "") + format("[{}]\n", section.name);
    void* owner = std::get<TableSlot>(section.slot(&config)).object;
    for (const Field& field : section.table->fields()) {
      out += field_line(field, owner, dotted(section.name, field.name), comments);
    }
  }
  return out;
}

}  // namespace

std::string config_toml(const Config& config, bool with_comments) {
  return write(config, {.docs = with_comments});
}

std::string config_toml_with_places(const LoadedConfig& loaded) {
  return write(loaded.config, {.after = [&](const std::string& path) { return where(loaded, path); }});
}

}  // namespace stepforge
