// SPDX-License-Identifier: Apache-2.0
// Writes one layer of parsed values into a Config, or into another struct with a schema, and checks each value.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/error_list.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// One source of values. A later layer wins.
struct ConfigLayer {
  std::string name;      ///< "preset debug", "run.toml", "command line"
  bool is_file = false;  ///< Values are named with line and column.
  /// Written by a run whose plug-ins may be missing: their sections are ignored, their names accepted.
  bool lacks_plugins = false;

  /// "run.toml:12:9", "preset debug", "command line"
  std::string place(TextPosition position) const;
};

/// The fields whose values were refused; the rules skip them.
class RefusedFields {
 public:
  /// "" stands for all fields.
  void add(std::string_view field) { fields_.emplace(field); }
  /// Whether the field, a part of it or a table around it was refused.
  bool contains(std::string_view field) const;

 private:
  std::set<std::string, std::less<>> fields_;
};

/// A setting of the command line.
struct Override {
  std::string name = {};
  std::string text = {};
  std::string error = {};  ///< If not "": what is wrong with the argument.
};

/// Reads the spellings name=value, --name=value and --name value.
std::vector<Override> read_overrides(std::span<const std::string> arguments);

/// What the values are written into.
struct LayerTarget {
  const TableSchema& schema;
  void* object;  ///< of the struct that `schema` describes
  std::map<std::string, std::string, std::less<>>& origins;
  /// Messages name the default of a refused key, and what unknown keys of other trainers are called here.
  bool is_config = true;
};

class LayerApplier {
 public:
  /// What the arguments refer to must outlive this object.
  LayerApplier(LoadedConfig& loaded, ErrorList& errors, RefusedFields& refused, ConfigLayer layer);
  LayerApplier(const LayerTarget& target, ErrorList& errors, RefusedFields& refused, ConfigLayer layer)
      : target_(target), errors_(errors), refused_(refused), layer_(std::move(layer)) {}

  /// Applies a whole TOML text. Errors are added in the order of their positions.
  void apply(const ConfigValue& root);
  void apply(const Override& setting);

 private:
  void apply_table(const TableSchema& schema, void* object, const ConfigValue& table, std::string_view path);
  void apply_field(const TableSchema& schema, const Field& field, const FieldSlot& slot,
                   const ConfigValue& value, const std::string& path);
  void apply_tables(const Field& field, const TableListSlot& slot, const ConfigValue& value,
                    const std::string& path);
  void refuse(const TableSchema& schema, const Field& field, const ConfigValue& value,
              const std::string& path);
  void refuse_unknown(const TableSchema& schema, std::string_view known, std::string_view unknown,
                      TextPosition position);
  void add_error(TextPosition position, std::string_view error);
  void flush_errors();
  void set_origin(const std::string& path, TextPosition position);

  LayerTarget target_;
  ErrorList& errors_;
  RefusedFields& refused_;
  ConfigLayer layer_;
  std::multimap<TextPosition, std::string> found_;  ///< Errors not yet added to errors_.
};

}  // namespace stepforge
