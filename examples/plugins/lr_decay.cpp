// SPDX-License-Identifier: Apache-2.0
// A learning-rate decay with a section of its own: [staircase] stairs = 4.
#include <cmath>

#include <stepforge/base/plugin.h>
#include <stepforge/catalog/lr_schedule.h>
#include <stepforge/config/config_section.h>

using namespace stepforge;

struct Staircase {
  int64_t stairs = 4;
};

/// From 1 to 0 in equal stairs.
static double staircase(const DecayStep& step) {
  const auto stairs = static_cast<double>(step.extensions.section<Staircase>().stairs);
  return std::ceil((1.0 - step.progress()) * stairs) / stairs;
}

STEPFORGE_PLUGIN(registry) {
  auto fields = SchemaOf<Staircase>();
  fields.field("stairs", &Staircase::stairs, "Number of stairs.", {.min = 1, .max = 1000});
  registry.add(config_section("staircase", fields, "Learning-rate decay in stairs."));
  registry.add(DecayKind{.name = "staircase", .factor = staircase});
}
