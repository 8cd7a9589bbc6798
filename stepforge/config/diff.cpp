// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/diff.h"

#include "stepforge/config/config_section.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// `before` and `after` are only read.
void collect(const TableSchema& schema, void* before, void* after, const std::string& path,
             OnResume inherited, std::vector<FieldDifference>& differences) {
  for (const Field& field : schema.fields()) {
    const FieldSlot first = field.slot(before);
    const FieldSlot second = field.slot(after);
    const std::string name = dotted(path, field.name);
    const OnResume on_resume = field.on_resume.value_or(inherited);
    if (const auto* table = std::get_if<TableSlot>(&first)) {
      collect(*field.table, table->object, std::get<TableSlot>(second).object, name, on_resume, differences);
      continue;
    }
    std::string old_value = toml_value(field, first);
    std::string new_value = toml_value(field, second);
    if (old_value != new_value)
      differences.push_back({name, std::move(old_value), std::move(new_value), on_resume});
  }
}

}  // namespace

std::vector<FieldDifference> diff(Config before, Config after) {
  std::vector<FieldDifference> differences;
  const bool same_plugins = before.extensions.same_plugins(after.extensions);
  collect(same_plugins ? schema_of(before) : config_schema(), &before, &after, "", OnResume{}, differences);
  return differences;
}

}  // namespace stepforge
