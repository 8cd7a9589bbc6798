// SPDX-License-Identifier: Apache-2.0
// Writes one layer of parsed values into a Config, judging each by the schema.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "stepforge/config/load.h"
#include "stepforge/config/problems.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/value.h"

namespace stepforge {

/// A word of the command line, "training.steps=10" in whichever spelling.
struct Override {
  std::string name;
  std::string text;
};

/// Reads the spellings name=value, --name=value and --name value; adds what fits none to `problems`.
std::vector<Override> read_overrides(std::span<const std::string> words, Problems& problems);

class LayerApplier {
 public:
  /// All are kept by reference.
  LayerApplier(LoadedConfig& loaded, Problems& problems, ConfigLayer layer)
      : loaded_(loaded), problems_(problems), layer_(std::move(layer)) {}

  /// The table of a whole TOML text.
  void apply(const ConfigValue& root) { apply_table(config_schema(), &loaded_.config, root, ""); }
  void apply(const Override& word);

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
  void remember_place(const std::string& path, TextPosition position);

  LoadedConfig& loaded_;
  Problems& problems_;
  ConfigLayer layer_;
};

}  // namespace stepforge
