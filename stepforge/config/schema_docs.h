// SPDX-License-Identifier: Apache-2.0
// Writes configurations as TOML, and the schema as help text, Markdown and JSON Schema.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"

namespace stepforge {

/// One field of the schema. The fields of a list of tables appear once, as "data.sources[].path".
struct FieldInfo {
  std::string section;  ///< "training", or "" for a top-level field
  std::string name;     ///< "steps", "rope_scaling.factor", "sources[].path"
  FieldType type = FieldType::text;
  std::string type_name;      ///< "integer", "list of strings", ...
  std::string default_value;  ///< as TOML; "" for a table
  std::string unit;
  std::string range;
  std::vector<std::string> choices;
  std::string doc;

  /// "training.steps"
  std::string path() const { return dotted(section, name); }
};

// `schema`: of a whole configuration.

/// All fields, in the order of the sections. The fields of a table follow the table.
std::vector<FieldInfo> all_fields(const TableSchema& schema = config_schema());

/// Plain text for a terminal with `width` columns. `name` is a section, a field ("training.steps"), or "" for
/// all. Throws UsageError if it does not exist.
std::string schema_help(std::string_view name = "", size_t width = 100,
                        const TableSchema& schema = config_schema());

/// One table per section.
std::string schema_markdown(const TableSchema& schema = config_schema());

/// JSON Schema (draft 2020-12) of the configuration, or of the part named as in schema_help, with the same
/// error.
Json schema_json(std::string_view name = "", const TableSchema& schema = config_schema());

/// TOML that loads to an equal Config. With comments, each section and field has its description.
std::string config_toml(const Config& config, bool with_comments = false);

/// The same, with the origin of each value in a comment after it.
std::string config_toml_with_places(const LoadedConfig& loaded);

}  // namespace stepforge
