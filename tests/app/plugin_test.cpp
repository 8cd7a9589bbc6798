// SPDX-License-Identifier: Apache-2.0
// Plug-ins: what they add to the command line and the configuration, and how unusable ones are refused.
#include <sys/stat.h>

#include "stepforge/base/json.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

std::string built(const std::string& name) {
  return (binary_dir() / ("test_plugin_" + name + ".so")).string();
}

/// The message with which `stepforge --plugin FILE config show` is refused, before any code of the library runs.
std::string refusal_of_library(const std::string& file) {
  const TempFolder folder;
  const ProgramResult result =
      run_program({"--plugin", file, "config", "show"}, "", {"LOUD=" + (folder / "loaded").string()});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_FALSE(fs::exists(folder / "loaded")) << "its code ran";
  return result.err;
}

TEST(Plugin, OfAnotherVersionIsRefusedWithBothVersions) {
  EXPECT_CONTAINS(refusal_of_library(built("wrong_version")), "--plugin: plug-in " + built("wrong_version"),
                  "was built for another version", "Stepforge 0.0.9", "this is Stepforge 0.1.0",
                  "build it again");
}

TEST(Plugin, OfTheSameVersionWithOtherHeadersIsRefused) {
  EXPECT_CONTAINS(refusal_of_library(built("other_headers")), "for Stepforge 0.1.0 (headers 01234567)",
                  "build it again with the headers of this program");
}

TEST(Plugin, ThatIsMissingOrNoPluginIsRefused) {
  EXPECT_CONTAINS(refusal_of_library("/nowhere/x.so"), "/nowhere/x.so", "No such file",
                  "path of a shared library");
  EXPECT_CONTAINS(refusal_of_library(built("not_one")), "not_one.so is not a plug-in", "STEPFORGE_PLUGIN");
  const TempFolder folder;
  write_text(folder / "text.so", std::string(4096, 'x'));
  EXPECT_CONTAINS(refusal_of_library((folder / "text.so").string()), "text.so is not a shared library");
  EXPECT_CONTAINS(run_program({"--plugin"}).err, "--plugin: no file follows");
}

TEST(Plugin, ThatIsCutOffOrNoFileIsRefused) {
  const TempFolder folder;
  const std::string whole = read_file(built("several"));
  for (const size_t part : {2, 4, 64}) {
    write_text(folder / "cut.so", whole.substr(0, whole.size() - whole.size() / part));
    EXPECT_CONTAINS(refusal_of_library((folder / "cut.so").string()), "cut.so is cut off");
  }
  ASSERT_EQ(mkfifo((folder / "pipe.so").c_str(), 0600), 0);
  EXPECT_CONTAINS(refusal_of_library((folder / "pipe.so").string()), "pipe.so is not a regular file");
  EXPECT_CONTAINS(refusal_of_library("/dev/zero"), "/dev/zero is not a regular file");
}

TEST(Plugin, WhoseEntryFunctionThrowsIsRefusedWithTheReason) {
  EXPECT_CONTAINS(refusal_of_library(built("failing")), built("failing"), "its entry function failed",
                  "registers the sub-command \"twice\", which is registered already");
  EXPECT_CONTAINS(refusal_of_library(built("throwing")), built("throwing"), "its entry function threw",
                  "other than a std::exception");
}

TEST(Plugin, WithANameThatIsTakenIsRefused) {
  EXPECT_CONTAINS(refusal_of_library(built("taken_names")), "pipeline schedule \"1F1B\"",
                  "parallelism.pipeline_parallel_schedule has a built-in one", "rename it");
}

TEST(Plugin, IsLoadedOnceHoweverOftenItIsNamed) {
  const std::string config =
      output_of({"--plugin", built("several"), "config", "show", "--plugin=" + built("several"),
                 "experimental.custom_import=[\"" + built("several") + "\"]"});
  EXPECT_CONTAINS(config, "custom_import = [\"" + built("several") + "\"]");
}

TEST(Plugin, AddsItsSectionToSchemaHelpAndConfiguration) {
  const Strings with = {"--plugin", built("several")};
  EXPECT_CONTAINS(output_of(with + Strings{"config", "schema", "stairs"}), "[stairs]  Stairs of a plug-in.",
                  "stairs.stairs = 4", "Number of stairs. (1 to 1000)");
  const Json schema = Json::parse(output_of(with + Strings{"config", "schema", "--format", "json"}));
  EXPECT_EQ(schema["properties"]["stairs"]["properties"]["stairs"]["maximum"], 1000);
  EXPECT_CONTAINS(schema["properties"]["lr_scheduler"]["properties"]["decay_type"]["enum"].dump(),
                  "\"half\"");
  EXPECT_CONTAINS(output_of(with + Strings{"config", "schema", "--format", "markdown"}), "## [stairs]");
  EXPECT_CONTAINS(output_of(with + Strings{"config", "show", "--stairs.stairs", "9"}), "[stairs]",
                  "stairs = 9", "# command line");
}

TEST(Plugin, KeysOfItsSectionAreCheckedLikeOthers) {
  const auto refused = [](const std::string& setting) {
    return run_program({"--plugin", built("several"), "config", "show", setting}).err;
  };
  EXPECT_CONTAINS(refused("stairs.stair=9"), "stairs.stair: unknown key", "did you mean stairs.stairs?");
  EXPECT_CONTAINS(refused("stairs.stairs=0"), "expected an integer (1 to 1000)");
  EXPECT_CONTAINS(refused("lr_scheduler.decay_type=haf"), "did you mean \"half\"?");
  EXPECT_CONTAINS(run_program({"config", "show", "stairs.stairs=9"}).err, "stairs: unknown section");
}

TEST(Plugin, OfAFileIsLoadedByTrainOnly) {
  const TempFolder folder;
  const std::string file =
      folder
          .write("run.toml",
                 "[stairs]\nstairs = 5\n[lr_scheduler]\ndecay_type = \"half\"\n[experimental]\n"
                 "custom_import = [\"" +
                     built("several") + "\"]\n")
          .string();
  for (const Strings& looking : {Strings{"config", "show"}, {"plan"}, {"data", "show"}, {"prove"}}) {
    EXPECT_CONTAINS(refusal_of(looking + Strings{file}), "run.toml:6:18: experimental.custom_import names",
                    "only `train` runs code that a file names", "add --plugin " + built("several"));
  }
  EXPECT_CONTAINS(output_of({"--plugin", built("several"), "config", "show", file}), "stairs = 5",
                  "run.toml:2:");
  const ProgramResult trained = run_program(Strings{"train", file} + small_run(folder / "run"));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
}

TEST(Plugin, NamedByASettingIsLoaded) {
  const Strings named = {"experimental.custom_import=[\"" + built("several") + "\"]", "stairs.stairs=9"};
  EXPECT_CONTAINS(output_of(Strings{"config", "show"} + named), "stairs = 9");
  EXPECT_CONTAINS(refusal_of({"config", "show", "experimental.custom_import=[\"/nowhere.so\"]"}),
                  "command line: experimental.custom_import: plug-in /nowhere.so");
}

TEST(Plugin, AddsASubCommandThatGetsItsArgumentsAndPlugins) {
  EXPECT_CONTAINS(output_of({"--plugin", built("several"), "--help"}), "show-stairs");
  const ProgramResult result = run_program({"--plugin", built("several"), "show-stairs", "stairs.stairs=12"});
  EXPECT_EQ(result.out, "12\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_CONTAINS(run_program({"show-stairs"}).err, "there is no command \"show-stairs\"");
}

TEST(Plugin, AnImpossibleScheduleIsRefusedByThePlan) {
  const TempFolder folder;
  const ProgramResult result = run_program(
      Strings{"--plugin", built("several"), "plan", "--world-size", "2"} + small_run(folder / "run") +
      Strings{"parallelism.pipeline_parallel_degree=2",
              "parallelism.pipeline_parallel_schedule=BackwardsOnly"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_CONTAINS(result.err, "rank 0 has no F of stage 0");
}

}  // namespace
}  // namespace stepforge::testing
