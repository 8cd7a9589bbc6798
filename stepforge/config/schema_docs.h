// SPDX-License-Identifier: Apache-2.0
// The configuration written out: as TOML, and its schema as help, Markdown and JSON Schema.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"

namespace stepforge {

/// One field of the schema. Those of a list of tables appear once, as "data.sources[].path".
struct FieldInfo {
  std::string section;  ///< "training"; "" at the top
  std::string name;     ///< "steps", "rope_scaling.factor", "sources[].path"
  FieldType type = FieldType::text;
  std::string type_name;      ///< "integer", "list of strings", ...
  std::string default_value;  ///< as TOML; "" for a table, whose fields follow
  std::string unit;
  std::string range;
  std::vector<std::string> choices;
  std::string doc;

  /// "training.steps"
  std::string path() const { return dotted(section, name); }
};

/// Every field in the order of the sections.
std::vector<FieldInfo> all_fields();

/// Plain text for a terminal of `width` columns. `name` is a section, a field ("training.steps"), or "" for
/// everything. Throws UsageError if there is none of that name.
std::string schema_help(std::string_view name = "", size_t width = 100);

/// One table per section.
std::string schema_markdown();

/// JSON Schema, draft 2020-12, of a configuration as a JSON document, or of the part that `name` means; see
/// schema_help.
Json schema_json(std::string_view name = "");

/// Loading the text gives an equal Config. With comments, each section and field is described.
std::string config_toml(const Config& config, bool with_comments = false);

/// The same with a comment behind each field that says where its value came from.
std::string config_toml_with_places(const LoadedConfig& loaded);

}  // namespace stepforge
