// SPDX-License-Identifier: Apache-2.0
// What plug-ins add to a configuration: sections of their own, and names for fields that accept any registered name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

#include "stepforge/base/registry.h"

namespace stepforge {

struct ConfigShape;
class TableSchema;

/// The part of a Config that belongs to plug-ins: the registry, and the values of the plug-ins' sections. Copies have values
/// of their own, and share the registry.
class Extensions {
 public:
  Extensions() = default;
  /// Default values.
  explicit Extensions(std::shared_ptr<const ConfigShape> shape);
  Extensions(const Extensions& other);
  Extensions& operator=(const Extensions& other);
  Extensions(Extensions&&) noexcept = default;
  Extensions& operator=(Extensions&&) noexcept = default;
  ~Extensions() = default;

  /// What the plug-ins have registered; empty without plug-ins.
  const Registry& registry() const;

  /// The values of the section whose struct is `Section`. Throws Error if none is registered.
  template <typename Section>
  const Section& section() const {
    return *static_cast<const Section*>(values_of(std::type_index(typeid(Section))));
  }

  /// Null without plug-ins.
  const std::shared_ptr<const ConfigShape>& shape() const { return shape_; }
  /// The values of the section with this index, in the order of registration.
  void* values(size_t index) const { return values_.at(index).get(); }

  /// Whether both have the sections of one registry.
  bool same_plugins(const Extensions& other) const;
  bool operator==(const Extensions& other) const;

 private:
  const void* values_of(std::type_index type) const;

  std::shared_ptr<const ConfigShape> shape_;
  std::vector<std::shared_ptr<void>> values_;
};

}  // namespace stepforge
