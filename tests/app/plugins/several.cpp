// SPDX-License-Identifier: Apache-2.0
// A plug-in with a section, a decay, a schedule and a sub-command, for the tests of how they are described and checked.
#include <iostream>

#include "stepforge/base/plugin.h"
#include "stepforge/catalog/lr_schedule.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/load.h"
#include "stepforge/schedule/generators.h"

namespace stepforge {
namespace {

struct Section {
  int64_t stairs = 4;
  std::string label = "plain";
};

/// An impossible order: backwards before forwards.
std::vector<Action> backwards_only(const ScheduleShape& shape, int rank) {
  std::vector<Action> actions;
  for (int i = 0; i < shape.micro_batches; ++i) actions.push_back({ActionKind::backward, rank, i});
  return actions;
}

int show_stairs(const std::vector<std::string>& arguments, const std::shared_ptr<Registry>& registry) {
  const Config config = load_config({}, arguments, ConfigUse::inspect, {}, registry).config;
  std::cout << config.extensions.section<Section>().stairs << '\n';
  return 7;
}

}  // namespace
}  // namespace stepforge

STEPFORGE_PLUGIN(registry) {
  using namespace stepforge;
  registry.add(
      config_section("stairs",
                     SchemaOf<Section>()
                         .field("stairs", &Section::stairs, "Number of stairs.", {.min = 1, .max = 1000})
                         .field("label", &Section::label, "A word."),
                     "Stairs of a plug-in."));
  registry.add(ScheduleKind{.name = "BackwardsOnly", .stages = {1, 1}, .actions_of = backwards_only});
  registry.add(DecayKind{.name = "half", .factor = [](const DecayStep&) { return 0.5; }});
  registry.add(SubCommand{"show-stairs", "Print the stairs", show_stairs});
}
