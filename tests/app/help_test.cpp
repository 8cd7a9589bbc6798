// SPDX-License-Identifier: Apache-2.0
// What the program says of itself, and what it refuses.
#include <algorithm>
#include <sstream>

#include "stepforge/base/json.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

class Help : public ::testing::TestWithParam<Words> {};

TEST_P(Help, FitsAScreen) {
  const std::string text = output_of(GetParam() + Words{"--help"});
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 110U) << line;
  EXPECT_LE(count, 40);
  EXPECT_GE(count, 4);
}

INSTANTIATE_TEST_SUITE_P(OfEveryCommand, Help,
                         ::testing::Values(Words{}, Words{"train"}, Words{"launch"}, Words{"eval"},
                                           Words{"generate"}, Words{"export"}, Words{"import"},
                                           Words{"tokenizer"}, Words{"tokenizer", "train"},
                                           Words{"tokenizer", "encode"}, Words{"tokenizer", "decode"},
                                           Words{"data"}, Words{"data", "build"}, Words{"data", "show"},
                                           Words{"plan"}, Words{"config"}, Words{"config", "show"},
                                           Words{"config", "schema"}, Words{"plot"}, Words{"doctor"},
                                           Words{"version"}),
                         [](const auto& command) {
                           std::string name = "stepforge";
                           for (const auto& word : command.param) name += "_" + word;
                           return name;
                         });

TEST(Program, NamesItsCommandsInItsHelp) {
  const std::string text = output_of({"--help"});
  for (const char* name : {"train", "launch", "eval", "generate", "export", "import", "tokenizer", "data",
                           "plan", "config", "plot", "doctor", "version"}) {
    EXPECT_CONTAINS(text, format("  {} ", name));
  }
}

TEST(Program, RefusesAnUnknownCommandAndSuggestsTheNearest) {
  const std::string message = refusal_of({"trian", "run.toml"});
  EXPECT_CONTAINS(message, "\"trian\"");
  EXPECT_CONTAINS(message, "did you mean \"train\"");
  EXPECT_CONTAINS(refusal_of({"config", "shov"}), "did you mean \"show\"");
  EXPECT_CONTAINS(refusal_of({"zzzzzzzz"}), "stepforge --help");
}

TEST(Program, RefusesToDoNothing) {
  EXPECT_EQ(run_program({}).exit_code, 2);
  EXPECT_EQ(run_program({"data"}).exit_code, 2);
}

TEST(Program, RefusesAnUnknownOption) {
  EXPECT_CONTAINS(refusal_of({"plot", "run", "--outptu", "x"}), "--outptu");
}

TEST(Version, NamesVersionCommitCompilerAndLibtorch) {
  const std::string text = output_of({"version"});
  for (const char* part : {"stepforge 0.", "commit ", "compiler ", "libtorch "}) EXPECT_CONTAINS(text, part);
}

TEST(Doctor, ChecksThisMachineAndFindsItWell) {
  const ProgramResult result = run_program({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  for (const char* part : {"processor", "memory", "torch library", "libtorch"})
    EXPECT_CONTAINS(result.out, part);
}

TEST(ConfigErrors, NameFilePlaceValueAndTheNearestKey) {
  const TempFolder folder;
  write_text(folder / "run.toml", "[training]\nstepz = 10\n");
  const std::string message = refusal_of({"train", (folder / "run.toml").string()});
  EXPECT_CONTAINS(message, "run.toml:2:1");
  EXPECT_CONTAINS(message, "training.stepz");
  EXPECT_TRUE(contains(message, "did you mean training.steps?") ||
              contains(message, "did you mean \"steps\"?"));
}

TEST(ConfigErrors, OfTypeAndRangeNameTheRule) {
  const std::string type = refusal_of({"config", "show", "training.steps=ten"});
  EXPECT_CONTAINS(type, "command line: training.steps = \"ten\": expected an integer");
  const std::string range = refusal_of({"config", "show", "model.dropout=1.5"});
  EXPECT_CONTAINS(range, "model.dropout = 1.5: expected a number (at least 0 and below 1)");
}

TEST(ConfigErrors, AreAllReportedTogether) {
  const std::string message =
      refusal_of({"train", "training.stepz=1", "model.dim=wide", "optimizer.lr=-3", "model.n_heads=3"});
  EXPECT_CONTAINS(message, "errors in the configuration");
  for (const char* part : {"training.stepz", "model.dim", "optimizer.lr", "data.sources"}) {
    EXPECT_CONTAINS(message, part);
  }
}

TEST(ConfigErrors, OfAMissingFileAndAnUnknownPresetAreTold) {
  EXPECT_CONTAINS(refusal_of({"train", "nowhere.toml"}), "nowhere.toml");
  const std::string preset = refusal_of({"plan", "--preset", "llama3-9b"});
  EXPECT_CONTAINS(preset, "did you mean \"llama3-8b\"?");
}

TEST(ConfigErrors, AreFoundBeforeAnythingIsWritten) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  refusal_of(Words{"train"} + small_run(run) + Words{"training.stepz=1"});
  EXPECT_FALSE(fs::exists(run));
}

TEST(ConfigShow, IsAFileThatGivesTheSameConfiguration) {
  const TempFolder folder;
  const std::string first =
      output_of({"config", "show", "--preset", "llama3.1-8b", "training.steps=7", "run_dir=a b",
                 "data.sources=[{path=\"x.txt\",weight=2.0}]", "optimizer.lr=3e-4"});
  write_text(folder / "shown.toml", first);
  const std::string second = output_of({"config", "show", (folder / "shown.toml").string()});
  const auto without_places = [](const std::string& text) {
    std::istringstream lines(text);
    std::string values;
    for (std::string line; std::getline(lines, line);) {
      std::string value = line.substr(0, line.rfind(" # "));
      value.erase(value.find_last_not_of(' ') + 1);
      values += value + "\n";
    }
    return values;
  };
  EXPECT_EQ(without_places(second), without_places(first));
  EXPECT_CONTAINS(first, "steps = 7");
  EXPECT_CONTAINS(first, "# command line");
  EXPECT_CONTAINS(first, "# preset llama3.1-8b");
}

TEST(ConfigShow, CommandLineWinsOverFileAndFileOverPreset) {
  const TempFolder folder;
  write_text(folder / "run.toml", "preset = \"debug\"\n[model]\ndim = 48\n[training]\nsteps = 30\n");
  const std::string file = (folder / "run.toml").string();
  const std::string shown = output_of({"config", "show", file, "--training.steps=40"});
  EXPECT_CONTAINS(shown, "\nsteps = 40 ");     // the command line's, not the file's 30
  EXPECT_CONTAINS(shown, "\ndim = 48 ");       // the file's, not the preset's 64
  EXPECT_CONTAINS(shown, "\nffn_dim = 176 ");  // the preset's, not the default
  EXPECT_CONTAINS(shown, "\nbeta1 = 0.9 ");    // the default
  // All ways of giving a value and a preset.
  const std::string expected = output_of({"config", "show", "--preset", "debug", "training.steps=3"});
  EXPECT_EQ(output_of({"config", "show", "preset=debug", "training.steps=3"}), expected);
  EXPECT_EQ(output_of({"config", "show", "training.steps=3", "--preset=debug"}), expected);
  EXPECT_EQ(output_of({"config", "show", "--training.steps", "3", "--preset=debug"}), expected);
}

TEST(ConfigWords, MayComeInAnyOrderWithOneFileAmongThem) {
  const TempFolder folder;
  const std::string file = (folder / "run.toml").string();
  write_text(file, "[model]\ndim = 48\n");
  const std::string expected = output_of({"config", "show", file, "training.steps=3", "optimizer.lr=0.1"});
  EXPECT_EQ(output_of({"config", "show", "training.steps=3", file, "--optimizer.lr=0.1"}), expected);
  EXPECT_EQ(output_of({"config", "show", "--training.steps", "3", "optimizer.lr=0.1", file}), expected);
  EXPECT_CONTAINS(refusal_of({"config", "show", file, "other.toml"}), "two configuration files");
  EXPECT_CONTAINS(refusal_of({"config", "show", file, "--training.steps"}), "no value follows");
}

TEST(ConfigSchema, ComesAsTextMarkdownAndJson) {
  EXPECT_CONTAINS(output_of({"config", "schema"}), "[training]");
  const std::string section = output_of({"config", "schema", "optimizer"});
  EXPECT_CONTAINS(section, "weight_decay");
  EXPECT_FALSE(contains(section, "n_layers"));
  EXPECT_CONTAINS(output_of({"config", "schema", "--format", "markdown"}), "## [lr_scheduler]");
  const Json schema = Json::parse(output_of({"config", "schema", "--format", "json"}));
  EXPECT_TRUE(schema["properties"]["training"]["properties"].contains("seq_len"));
  EXPECT_CONTAINS(refusal_of({"config", "schema", "--format", "yaml"}), "yaml");
  EXPECT_CONTAINS(refusal_of({"config", "schema", "optimiser"}), "did you mean \"optimizer\"?");
}

TEST(Plan, PrintsUnitsOperationsAndThePredictedPeak) {
  const std::string text = output_of({"plan", "--preset", "debug"});
  for (const char* part : {"parameters", "Units", "Blocks", "layers.0", "embedding", "head", "peak"}) {
    EXPECT_CONTAINS(text, part);
  }
}

TEST(Plan, KnowsTheLargestModelByItsPublishedSize) {
  EXPECT_CONTAINS(output_of({"plan", "--preset", "llama3-405b"}), "405,853,388,800");
}

TEST(Plan, WritesATraceOfThePredictedStep) {
  const TempFolder folder;
  const std::string trace = (folder / "trace.json").string();
  output_of({"plan", "--preset", "debug", "--trace", trace});
  EXPECT_FALSE(Json::parse(read_file(trace))["traceEvents"].empty());
}

}  // namespace
}  // namespace stepforge::testing
