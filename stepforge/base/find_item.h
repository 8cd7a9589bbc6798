// SPDX-License-Identifier: Apache-2.0
// Looks up an item that a configuration field names: one of the program, or one that a plug-in has registered.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/registry.h"

namespace stepforge {

/// The item of this name among `builtin` or in `registry`. Throws UsageError naming `field` and all items if there is none.
template <typename Item>
const Item& find_item(std::string_view name, std::span<const Item> builtin, const Registry& registry,
                      std::string_view field) {
  for (const Item& item : builtin)
    if (item.name == name) return item;
  if (const Item* added = registry.find<Item>(name)) return *added;
  std::vector<std::string> known;
  for (const Item& item : builtin) known.emplace_back(item.name);
  for (const Item& item : registry.all<Item>()) known.emplace_back(item.name);
  throw UsageError(format("{} = \"{}\": there is no such {}; is a plug-in missing? Known: {}", field, name,
                          Item::kKind, join(known, ", ")));
}

}  // namespace stepforge
