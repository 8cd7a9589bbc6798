// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/override_value.h"

#include <gtest/gtest.h>

#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

TEST(Overrides, ThreeSpellingsAreEquivalent) {
  for (const Strings& arguments : {Strings{"training.steps=10"}, Strings{"--training.steps=10"},
                                   Strings{"--training.steps", "10"}, Strings{"training.steps = 10"}}) {
    EXPECT_EQ(parsed("", arguments).config.training.steps, 10) << arguments.front();
  }
  EXPECT_EQ(parsed("", {"--training.global_batch_size", "-1"}).config.training.global_batch_size, -1);
}

TEST(Overrides, StringsNeedNoQuotes) {
  EXPECT_EQ(parsed("", {"run_dir=runs/a b=c"}).config.run_dir, "runs/a b=c");
  EXPECT_EQ(parsed("", {"run_dir=2024"}).config.run_dir, "2024");
  EXPECT_EQ(parsed("", {"run_dir=true"}).config.run_dir, "true");
  EXPECT_EQ(parsed("", {"run_dir=C:\\x"}).config.run_dir, "C:\\x");
  EXPECT_EQ(parsed("", {R"(run_dir="a\tb")"}).config.run_dir, "a\tb");
  EXPECT_EQ(parsed("", {"run_dir='a#b'"}).config.run_dir, "a#b");
  EXPECT_EQ(parsed("", {"sampling.prompt="}).config.sampling.prompt, "");
  EXPECT_EQ(parsed("", {"precision.compute=bf16"}).config.precision.compute, DType::bf16);
  EXPECT_EQ(parsed("", {R"(preset="debug")"}).config.model.dim, 64);
}

TEST(Overrides, ListsNeedNoBrackets) {
  const Strings mode{"activation_checkpoint.mode=blocks"};
  for (const char* list : {"[0, 2]", "0,2", "0, 2"}) {
    const Config config =
        parsed("", {mode.front(), std::string("activation_checkpoint.blocks=") + list}).config;
    EXPECT_EQ(config.activation_checkpoint.blocks, (std::vector<int64_t>{0, 2})) << list;
  }
  for (const char* list : {"[\"data\", \"seed\"]", "data,seed"}) {
    const Config config = parsed("", {std::string("checkpoint.allow_changed=") + list}).config;
    EXPECT_EQ(config.checkpoint.allow_changed, (std::vector{Guard::data, Guard::seed})) << list;
  }
  EXPECT_EQ(parsed("", {"checkpoint.allow_changed=data"}).config.checkpoint.allow_changed,
            std::vector{Guard::data});
  const std::string file = "[checkpoint]\nallow_changed = [\"data\"]\n";
  EXPECT_EQ(parsed(file, {"checkpoint.allow_changed="}).config.checkpoint.allow_changed,
            std::vector<Guard>{});
}

TEST(Overrides, TablesAndListsOfTablesAreAccepted) {
  const Config config = parsed("", {"data.sources=[{path=\"a.txt\"}, {path=\"b\", weight=2}]",
                                    "model.rope_scaling={type=\"llama3\", factor=2}"})
                            .config;
  const std::vector<DataSourceConfig> sources{{.path = "a.txt"}, {.path = "b", .weight = 2.0}};
  EXPECT_EQ(config.data.sources, sources);
  EXPECT_EQ(config.model.rope_scaling.type, RopeScalingType::llama3);
  EXPECT_EQ(config.model.rope_scaling.factor, 2.0);
}

TEST(Overrides, ListElementsAreChangedOrAppendedByIndex) {
  const std::string text = "[data]\nsources = [{ path = \"a\", weight = 2 }]\n";
  const Config config = parsed(text, {"data.sources.0.path=c", "data.sources.1.path=d"}).config;
  const std::vector<DataSourceConfig> sources{{.path = "c", .weight = 2.0}, {.path = "d"}};
  EXPECT_EQ(config.data.sources, sources);
  EXPECT_EQ(parsed(text, {"data.sources.0={weight=3}"}).config.data.sources.front().weight, 3.0);
  EXPECT_EQ(error_of(text, {"data.sources.2.path=d"}),
            "command line: data.sources.2: data.sources has no member \"2\"");
  EXPECT_EQ(error_of(text, {"data.sources.x.path=d"}),
            "command line: data.sources.x: data.sources has no member \"x\"");
  EXPECT_EQ(error_of(text, {"training.steps.x=3"}),
            "command line: training.steps.x: training.steps has no member \"x\"");
}

TEST(Overrides, WrongArgumentsAreRefused) {
  EXPECT_EQ(error_of("", {"training.steps=ten"}),
            "command line: training.steps = \"ten\": expected an integer (0 to 1e12); the default is 0");
  EXPECT_EQ(error_of("", {"--training.steps"}),
            "command line: --training.steps: no value follows; write --training.steps=VALUE");
  EXPECT_EQ(error_of("", {"--training.steps", "--training.epochs=2"}),
            "command line: --training.steps: no value follows; write --training.steps=VALUE");
  EXPECT_EQ(error_of("", {"train"}), "command line: \"train\": expected SECTION.KEY=VALUE");
  EXPECT_TRUE(
      error_of("", {"data.sources=[1"}).starts_with("command line: data.sources = [1: not a TOML value: "));
  EXPECT_CONTAINS(error_of("", {"run_dir=\xff"}), "run_dir = \xff: not a TOML value: ");
  EXPECT_EQ(error_of("", {"=3"}).substr(0, 41), "command line: : unknown section or key; k");
}

TEST(Overrides, AValueCannotSetOtherKeys) {
  EXPECT_EQ(error_of("", {"training.steps=1\n[model]\ndim=4"}),
            "command line: training.steps = \"1\\n[model]\\ndim=4\": expected an integer (0 to 1e12); "
            "the default is 0");
}

}  // namespace
}  // namespace stepforge::testing
