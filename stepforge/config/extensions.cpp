// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/extensions.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

const Registry& no_plugins() {
  static const Registry none;
  return none;
}

/// Adds the names of registered items to the choices of the fields that are open to them.
class ChoiceExtender {
 public:
  explicit ChoiceExtender(const Registry& registry) : registry_(registry) {}

  void extend(std::vector<Field>& fields, const std::string& path) const {
    for (Field& field : fields) {
      const std::string name = dotted(path, field.name);
      for (const std::string& added : registry_.names(field.rules.open_to)) {
        auto& choices = field.rules.choices;
        if (std::find(choices.begin(), choices.end(), added) != choices.end()) {
          throw UsageError(
              format("a plug-in registers the {} \"{}\", but {} has a built-in one of that name; rename it",
                     field.rules.open_to, added, name));
        }
        choices.emplace_back(added);
      }
      if (!field.table) continue;
      TableSchema table = *field.table;
      extend(table.fields(), name);
      field.table = std::make_shared<const TableSchema>(std::move(table));
    }
  }

 private:
  const Registry& registry_;
};

/// A section as a field of Config; `index` is its place in the registry.
Field field_of(const ConfigSection& section, size_t index) {
  return {.name = section.name,
          .type = FieldType::table,
          .doc = section.doc,
          .on_resume = section.on_resume,
          .table = section.schema,
          .slot = [index](void* owner) -> FieldSlot {
            return TableSlot{static_cast<Config*>(owner)->extensions.values(index)};
          }};
}

}  // namespace

std::shared_ptr<const ConfigShape> make_config_shape(std::shared_ptr<const Registry> registry) {
  auto shape = std::make_shared<ConfigShape>(ConfigShape{std::move(registry), config_schema()});
  const std::weak_ptr<const ConfigShape> self = shape;
  shape->schema.make_defaults_with([self]() -> std::shared_ptr<void> {
    auto config = std::make_shared<Config>();
    use_plugins(*config, self.lock());
    return config;
  });
  auto& fields = shape->schema.fields();
  ChoiceExtender(*shape->registry).extend(fields, "");
  size_t index = 0;
  for (const ConfigSection& section : shape->registry->all<ConfigSection>()) {
    if (shape->schema.find(section.name) != nullptr)
      throw UsageError(format(
          "a plug-in registers the configuration section [{}], which is built in; rename it", section.name));
    fields.push_back(field_of(section, index++));
  }
  return shape;
}

void use_plugins(Config& config, const std::shared_ptr<const ConfigShape>& shape) {
  config.extensions = Extensions(shape);
  config.model.plugins = shape->registry;
}

void list_plugins(Config& config) {
  auto& files = config.experimental.custom_import;
  files.clear();
  for (const std::filesystem::path& file : config.extensions.registry().plugins())
    files.push_back(file.string());
}

const TableSchema& schema_of(const Config& config) {
  const auto& shape = config.extensions.shape();
  return shape != nullptr ? shape->schema : config_schema();
}

Extensions::Extensions(std::shared_ptr<const ConfigShape> shape) : shape_(std::move(shape)) {
  if (shape_ == nullptr) return;
  for (const ConfigSection& section : shape_->registry->all<ConfigSection>())
    values_.push_back(section.schema->make_default());
}

Extensions::Extensions(const Extensions& other) : shape_(other.shape_) {
  if (shape_ == nullptr) return;
  const auto& sections = shape_->registry->all<ConfigSection>();
  for (size_t i = 0; i < other.values_.size(); ++i)
    values_.push_back(sections[i].schema->copy(other.values_[i].get()));
}

Extensions& Extensions::operator=(const Extensions& other) {
  if (this != &other) *this = Extensions(other);
  return *this;
}

const Registry& Extensions::registry() const {
  return shape_ != nullptr ? *shape_->registry : no_plugins();
}

const void* Extensions::values_of(std::type_index type) const {
  const auto& sections = registry().all<ConfigSection>();
  for (size_t i = 0; i < values_.size(); ++i) {
    if (sections[i].type == type) return values_[i].get();
  }
  throw Error(format("no configuration section with values of type {} is registered", type.name()));
}

bool Extensions::same_plugins(const Extensions& other) const {
  return &registry() == &other.registry() && values_.size() == other.values_.size();
}

bool Extensions::operator==(const Extensions& other) const {
  if (!same_plugins(other)) return false;
  const auto& sections = registry().all<ConfigSection>();
  for (size_t i = 0; i < values_.size(); ++i) {
    for (const Field& field : sections[i].schema->fields()) {
      if (toml_value(field, field.slot(values_[i].get())) !=
          toml_value(field, field.slot(other.values_[i].get())))
        return false;
    }
  }
  return true;
}

}  // namespace stepforge
