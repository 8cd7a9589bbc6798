// SPDX-License-Identifier: Apache-2.0
// The sections of plug-ins in the configuration, and the schema that includes them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>

#include "stepforge/base/registry.h"
#include "stepforge/config/schema.h"

namespace stepforge {

/// A section for the registry; made by config_section.
struct ConfigSection {
  static constexpr std::string_view kKind = "configuration section";
  std::string name;
  std::string doc;  ///< a sentence
  std::shared_ptr<const TableSchema> schema;
  std::type_index type;
  OnResume on_resume = {};
};

/// The section `[name]`, whose values are a struct `Section`: Config::extensions.section<Section>(). `on_resume`: what
/// happens when a resumed run changes them.
template <typename Section>
ConfigSection config_section(const std::string& name, SchemaOf<Section> schema, const std::string& doc,
                             OnResume on_resume = {}) {
  return {.name = name,
          .doc = doc,
          .schema = std::make_shared<const TableSchema>(std::move(schema)),
          .type = std::type_index(typeid(Section)),
          .on_resume = on_resume};
}

/// The configuration with everything that the plug-ins of a registry have added.
struct ConfigShape {
  std::shared_ptr<const Registry> registry;
  TableSchema schema;
};

/// Throws UsageError if a plug-in uses the name of an existing section, or of an existing choice of a field. Items
/// that are added to the registry later are not in the schema.
std::shared_ptr<const ConfigShape> make_config_shape(std::shared_ptr<const Registry> registry);

/// Gives a configuration the sections of plug-ins, with default values, and the names that they have registered.
void use_plugins(Config& config, const std::shared_ptr<const ConfigShape>& shape);

/// Lists the files of all its plug-ins in experimental.custom_import.
void list_plugins(Config& config);

/// The schema of `config`: config_schema() and what its plug-ins have added.
const TableSchema& schema_of(const Config& config);

}  // namespace stepforge
