// SPDX-License-Identifier: Apache-2.0
// Sections of plug-ins in the configuration.
#include "stepforge/config/extensions.h"

#include <gtest/gtest.h>

#include "stepforge/config/config_section.h"
#include "stepforge/config/diff.h"
#include "stepforge/config/schema_docs.h"
#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

struct Paint {
  int64_t coats = 2;
  std::vector<std::string> colours = {"red"};
};

std::shared_ptr<Registry> paint_registry() {
  auto registry = std::make_shared<Registry>();
  registry->add(config_section("paint",
                               SchemaOf<Paint>()
                                   .field("coats", &Paint::coats, "Number of coats.", {.min = 1, .max = 9})
                                   .field("colours", &Paint::colours, "Colours."),
                               "Paint.", guarded(Guard::model)));
  return registry;
}

LoadedConfig painted(const std::string& text, const std::shared_ptr<Registry>& registry,
                     const Strings& overrides = {}) {
  return parse_config(text, "run.toml", overrides, ConfigUse::inspect, {}, registry);
}

TEST(Extensions, ASectionHasDefaultsAndValues) {
  const auto registry = paint_registry();
  EXPECT_EQ(painted("", registry).config.extensions.section<Paint>().coats, 2);
  const LoadedConfig loaded = painted("[paint]\ncoats = 3\n", registry, {"paint.colours=blue,green"});
  EXPECT_EQ(loaded.config.extensions.section<Paint>().coats, 3);
  EXPECT_EQ(loaded.config.extensions.section<Paint>().colours, (Strings{"blue", "green"}));
  EXPECT_EQ(where(loaded, "paint.coats"), "run.toml:2:9");
  EXPECT_CONTAINS(message_of<UsageError>([&] { painted("[paint]\ncoats = 10\n", registry); }), "run.toml:2:9",
                  "1 to 9");
  EXPECT_CONTAINS(error_of("[paint]\ncoats = 3\n"), "paint: unknown section");
}

TEST(Extensions, ACopyHasValuesOfItsOwn) {
  const auto registry = paint_registry();
  const Config before = painted("", registry).config;
  Config after = before;
  EXPECT_EQ(before, after);
  static_cast<Paint*>(after.extensions.values(0))->coats = 5;
  EXPECT_EQ(before.extensions.section<Paint>().coats, 2);
  EXPECT_FALSE(before == after);
  const auto differences = diff(before, after);
  ASSERT_EQ(differences.size(), 1U);
  EXPECT_EQ(differences[0].name, "paint.coats");
  EXPECT_EQ(differences[0].on_resume.guard, Guard::model);
}

TEST(Extensions, AreWrittenAndReadBack) {
  const auto registry = paint_registry();
  const Config config = painted("[paint]\ncoats = 7\n", registry).config;
  const std::string toml = config_toml(config);
  EXPECT_CONTAINS(toml, "[paint]", "coats = 7");
  EXPECT_EQ(painted(toml, registry).config, config);
}

TEST(Extensions, WrittenByARunAreReadWithoutItsPlugins) {
  const std::string stored =
      "[lr_scheduler]\ndecay_type = \"of_a_plugin\"\n[paint]\ncoats = 7\n[experimental]\ncustom_import = "
      "[\"/gone.so\"]\n";
  const Config config = parse_stored_config(stored, "state.json");
  EXPECT_EQ(config.lr_scheduler.decay_type, "of_a_plugin");
  EXPECT_EQ(parse_stored_config(stored, "state.json", paint_registry()).extensions.section<Paint>().coats, 7);
  EXPECT_CONTAINS(message_of<UsageError>([] { parse_stored_config("[paint]\ncoats = 7\n", "state.json"); }),
                  "unknown section")
      << "a run without plug-ins has written no such section";
}

TEST(Extensions, PluginsAreNotLoadedWithoutARegistry) {
  EXPECT_CONTAINS(error_of("[experimental]\ncustom_import = [\"x.so\"]\n"), "run.toml:2:18",
                  "cannot be loaded here");
}

TEST(Extensions, ASectionNameThatIsBuiltInIsRefused) {
  const auto registry = std::make_shared<Registry>();
  registry->add(config_section("training", SchemaOf<Paint>(), "Paint."));
  EXPECT_CONTAINS(message_of<UsageError>([&] { painted("", registry); }), "[training], which is built in");
}

}  // namespace
}  // namespace stepforge::testing
