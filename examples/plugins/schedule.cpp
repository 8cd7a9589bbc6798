// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule with a section of its own: forwards of [newest_first] group = 4 micro-batches, then their backwards,
// newest first.
#include <algorithm>
#include <vector>

#include <stepforge/base/plugin.h>
#include <stepforge/config/config_section.h>
#include <stepforge/schedule/generators.h>

using namespace stepforge;

struct NewestFirst {
  int64_t group = 4;
};

static std::vector<Action> newest_first(const ScheduleShape& shape, int rank) {
  const auto group = static_cast<int>(shape.extensions.section<NewestFirst>().group);
  std::vector<Action> actions;
  for (int begin = 0; begin < shape.micro_batches; begin += group) {
    const int end = std::min(begin + group, shape.micro_batches);
    for (int i = begin; i < end; ++i) actions.push_back({ActionKind::forward, rank, i});
    for (int i = end; i-- > begin;) actions.push_back({ActionKind::backward, rank, i});
  }
  return actions;
}

STEPFORGE_PLUGIN(registry) {
  const auto fields =
      SchemaOf<NewestFirst>().field("group", &NewestFirst::group, "Micro-batches.", {.min = 1, .max = 1024});
  registry.add(config_section("newest_first", fields, "Order of micro-batches."));
  registry.add(ScheduleKind{.name = "NewestFirst", .stages = {1, 1}, .actions_of = newest_first});
}
