// SPDX-License-Identifier: Apache-2.0
// Help texts, refused arguments, and the commands that only print.
#include <algorithm>
#include <sstream>

#include "stepforge/base/json.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

class Help : public ::testing::TestWithParam<Strings> {};

TEST_P(Help, FitsAScreen) {
  const std::string text = output_of(GetParam() + Strings{"--help"});
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 110U) << line;
  EXPECT_LE(count, 40);
  EXPECT_GE(count, 4);
}

INSTANTIATE_TEST_SUITE_P(
    OfEveryCommand, Help,
    ::testing::Values(Strings{}, Strings{"train"}, Strings{"finetune"}, Strings{"launch"}, Strings{"eval"},
                      Strings{"generate"}, Strings{"chat"}, Strings{"export"}, Strings{"import"},
                      Strings{"tokenizer"}, Strings{"tokenizer", "train"}, Strings{"tokenizer", "encode"},
                      Strings{"tokenizer", "decode"}, Strings{"data"}, Strings{"data", "build"},
                      Strings{"data", "show"}, Strings{"plan"}, Strings{"config"}, Strings{"config", "show"},
                      Strings{"config", "schema"}, Strings{"config", "presets"}, Strings{"config", "convert"},
                      Strings{"plot"}, Strings{"doctor"}, Strings{"gpu-check"}, Strings{"version"}),
    [](const auto& command) {
      std::string name = "stepforge";
      for (const auto& word : command.param) name += "_" + word;
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST(Program, NamesItsCommandsInItsHelp) {
  const std::string text = output_of({"--help"});
  for (const char* name : {"train", "finetune", "launch", "eval", "generate", "export", "import", "tokenizer",
                           "data", "plan", "config", "plot", "doctor", "gpu-check", "version"}) {
    EXPECT_TRUE(contains(text, format("  {} ", name)));
  }
}

TEST(Program, RefusesAnUnknownCommandAndSuggestsTheNearest) {
  const std::string message = refusal_of({"trian", "run.toml"});
  EXPECT_TRUE(contains(message, "\"trian\""));
  EXPECT_TRUE(contains(message, "did you mean \"train\""));
  EXPECT_TRUE(contains(refusal_of({"config", "shov"}), "did you mean \"show\""));
  EXPECT_TRUE(contains(refusal_of({"zzzzzzzz"}), "stepforge --help"));
}

TEST(Program, WithoutACommandListsThem) {
  EXPECT_TRUE(contains(refusal_of({}), "error: `stepforge` needs a command:\n  train "));
  EXPECT_TRUE(contains(refusal_of({"data"}), "error: `stepforge data` needs a command:\n  build "));
}

TEST(Program, NamesTheOptionAndValueThatAreWrong) {
  EXPECT_EQ(refusal_of({"plot", "run", "--outptu", "x"}),
            "error: --outptu is not an option of `stepforge plot`; did you mean --output?; "
            "see `stepforge plot --help`\n");
  EXPECT_EQ(refusal_of({"train", "--dry-rnu", "2"}),
            "error: --dry-rnu is not an option of `stepforge train`; did you mean --dry-run?; "
            "see `stepforge train --help`\n");
  EXPECT_EQ(refusal_of({"launch", "--nproc", "0", "train"}), "error: --nproc: 0 is less than 1\n");
  EXPECT_EQ(refusal_of({"generate", "x", "--top-p", "2"}), "error: --top-p: 2 is not between 0 and 1\n");
  EXPECT_EQ(refusal_of({"generate", "x", "--max-tokens", "many"}),
            "error: --max-tokens: \"many\" is not a number\n");
  EXPECT_EQ(refusal_of({"eval", "x", "--compute", "fp64"}),
            "error: --compute: \"fp64\" is not one of fp32|bf16\n");
  EXPECT_EQ(refusal_of({"export"}),
            "error: `stepforge export`: model is required; see `stepforge export --help`\n");
}

TEST(Program, HelpIsACommandTooAndShowsArgumentsAndDefaults) {
  EXPECT_EQ(output_of({"help", "generate"}), output_of({"generate", "--help"}));
  EXPECT_TRUE(contains(output_of({"help"}), "\n  train "));
  EXPECT_TRUE(contains(output_of({"help", "generate"}), "(default 128)"));
  EXPECT_TRUE(contains(output_of({"help", "train"}),
                       "Usage: stepforge train [OPTIONS] [FILE.toml] [section.key=value ...]\n"));
}

TEST(Version, NamesVersionCommitCompilerAndLibtorch) {
  const std::string text = output_of({"version"});
  for (const char* part : {"stepforge 0.", "commit ", "compiler ", "libtorch "})
    EXPECT_TRUE(contains(text, part));
}

TEST(Doctor, PassesOnThisMachine) {
  const ProgramResult result = run_program({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  for (const char* part : {"processor", "memory", "torch library", "libtorch"})
    EXPECT_TRUE(contains(result.out, part));
}

TEST(ConfigErrors, NameFileLineColumnAndTheNearestKey) {
  const TempFolder folder;
  write_text(folder / "run.toml", "[training]\nstepz = 10\n");
  const std::string message = refusal_of({"train", (folder / "run.toml").string()});
  EXPECT_TRUE(contains(message, "run.toml:2:1"));
  EXPECT_TRUE(contains(message, "training.stepz"));
  EXPECT_TRUE(contains(message, "did you mean training.steps?") ||
              contains(message, "did you mean \"steps\"?"));
}

TEST(ConfigErrors, NameTheExpectedTypeOrRange) {
  const std::string type = refusal_of({"config", "show", "training.steps=ten"});
  EXPECT_TRUE(contains(type, "command line: training.steps = \"ten\": expected an integer"));
  const std::string range = refusal_of({"config", "show", "model.dropout=1.5"});
  EXPECT_TRUE(contains(range, "model.dropout = 1.5: expected a number (at least 0 and below 1)"));
}

TEST(ConfigErrors, AreAllReportedTogether) {
  const std::string message =
      refusal_of({"train", "training.stepz=1", "model.dim=wide", "optimizer.lr=-3", "model.n_heads=3"});
  EXPECT_TRUE(contains(message, " errors in the configuration:\n"));
  for (const char* part : {"training.stepz", "model.dim", "optimizer.lr", "data.sources"}) {
    EXPECT_TRUE(contains(message, part));
  }
}

TEST(ConfigErrors, NameAMissingFileAndSuggestAPreset) {
  EXPECT_TRUE(contains(refusal_of({"train", "nowhere.toml"}), "nowhere.toml"));
  const std::string preset = refusal_of({"plan", "--preset", "llama3-9b"});
  EXPECT_TRUE(contains(preset, "did you mean \"llama3-8b\"?"));
}

TEST(ConfigErrors, AreFoundBeforeAnythingIsWritten) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  refusal_of(Strings{"train"} + small_run(run) + Strings{"training.stepz=1"});
  EXPECT_FALSE(fs::exists(run));
}

TEST(ConfigShow, IsAFileThatGivesTheSameConfiguration) {
  const TempFolder folder;
  const std::string first =
      output_of({"config", "show", "--preset", "llama3.1-8b", "training.steps=7", "run_dir=a b\u0085",
                 "data.sources=[{path=\"x.txt\",weight=2.0}]", "optimizer.lr=3e-4"});
  write_text(folder / "shown.toml", first);
  const std::string second = output_of({"config", "show", (folder / "shown.toml").string()});
  const auto without_origins = [](const std::string& text) {
    std::istringstream lines(text);
    std::string values;
    for (std::string line; std::getline(lines, line);) {
      std::string value = line.substr(0, line.rfind(" # "));
      value.erase(value.find_last_not_of(' ') + 1);
      values += value + "\n";
    }
    return values;
  };
  EXPECT_EQ(without_origins(second), without_origins(first));
  EXPECT_TRUE(contains(first, "steps = 7"));
  EXPECT_TRUE(contains(first, "# command line"));
  EXPECT_TRUE(contains(first, "# preset llama3.1-8b"));
}

TEST(ConfigShow, CommandLineWinsOverFileAndFileOverPreset) {
  const TempFolder folder;
  write_text(folder / "run.toml", "preset = \"debug\"\n[model]\ndim = 48\n[training]\nsteps = 30\n");
  const std::string file = (folder / "run.toml").string();
  const std::string shown = output_of({"config", "show", file, "--training.steps=40"});
  EXPECT_TRUE(contains(shown, "\nsteps = 40 "));     // the command line's, not the file's 30
  EXPECT_TRUE(contains(shown, "\ndim = 48 "));       // the file's, not the preset's 64
  EXPECT_TRUE(contains(shown, "\nffn_dim = 176 "));  // the preset's, not the default
  EXPECT_TRUE(contains(shown, "\nbeta1 = 0.9 "));    // the default
  // All ways of giving a value and a preset.
  const std::string expected = output_of({"config", "show", "--preset", "debug", "training.steps=3"});
  EXPECT_EQ(output_of({"config", "show", "preset=debug", "training.steps=3"}), expected);
  EXPECT_EQ(output_of({"config", "show", "training.steps=3", "--preset=debug"}), expected);
  EXPECT_EQ(output_of({"config", "show", "--training.steps", "3", "--preset=debug"}), expected);
}

TEST(ConfigArgs, MayComeInAnyOrderWithOneFile) {
  const TempFolder folder;
  const std::string file = (folder / "run.toml").string();
  write_text(file, "[model]\ndim = 48\n");
  const std::string expected = output_of({"config", "show", file, "training.steps=3", "optimizer.lr=0.1"});
  EXPECT_EQ(output_of({"config", "show", "training.steps=3", file, "--optimizer.lr=0.1"}), expected);
  EXPECT_EQ(output_of({"config", "show", "--training.steps", "3", "optimizer.lr=0.1", file}), expected);
  EXPECT_TRUE(
      contains(refusal_of({"config", "show", file, "other.toml"}), "only one configuration file is allowed"));
  EXPECT_TRUE(contains(refusal_of({"config", "show", file, "--training.steps"}), "no value follows"));
}

TEST(ConfigSchema, DescribesEveryFieldASectionOrOneField) {
  const std::string all = output_of({"config", "schema"});
  for (const char* field :
       {"\n  training.steps = 0\n", "\n  optimizer.lr = 8e-4\n", "\n  debug.print_config = false\n"})
    EXPECT_TRUE(contains(all, field)) << field;
  EXPECT_EQ(output_of({"config", "schema", "optimizer.lr"}),
            "  optimizer.lr = 8e-4\n      Peak learning rate. (0 to 1000)\n");
  const Json field = Json::parse(output_of({"config", "schema", "optimizer.lr", "--format", "json"}));
  EXPECT_EQ(field["default"], 8e-4);
  EXPECT_TRUE(contains(refusal_of({"config", "schema", "optimizer.lrr"}), "did you mean \"optimizer.lr\"?"));
}

TEST(ConfigPresets, AreListedWithTheirSummaries) {
  EXPECT_TRUE(
      contains(output_of({"config", "presets"}), "llama3-8b        Llama 3, 8 billion parameters.\n"));
}

TEST(ConfigConvert, PrintsTomlAndListsEverySetting) {
  const TempFolder folder;
  write_text(folder / "args.yaml", "learning_rate: 1.0e-5\nfp16: false\npush_to_hub: true\ndo_train: true\n");
  const ProgramResult result = run_program({"config", "convert", (folder / "args.yaml").string()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_CONTAINS(result.out, "\n[optimizer]\nlr = 1e-5\n", "\n# Not translated:\n# push_to_hub = true: ",
                  "\n# Nothing is needed for:\n# do_train = true:", "\n# Off:\n# fp16\n");
  EXPECT_CONTAINS(result.err, "4 settings: 1 translated, 1 need nothing, 1 off, 0 refused, 1 not translated");
}

TEST(ConfigConvert, NamesOptionsThatHaveNoEffect) {
  const TempFolder folder;
  write_text(folder / "moe.yaml", "num_layers: 4\nmoe_token_dispatcher_type: allgather\n");
  const ProgramResult result = run_program({"config", "convert", (folder / "moe.yaml").string()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_CONTAINS(result.out,
                  "\n# Nothing is needed for:\n# moe_token_dispatcher_type = \"allgather\": there is no "
                  "expert parallelism");
}

TEST(ConfigSchema, ComesAsTextMarkdownAndJson) {
  EXPECT_TRUE(contains(output_of({"config", "schema"}), "[training]"));
  const std::string section = output_of({"config", "schema", "optimizer"});
  EXPECT_TRUE(contains(section, "weight_decay"));
  EXPECT_FALSE(contains(section, "n_layers"));
  EXPECT_TRUE(contains(output_of({"config", "schema", "--format", "markdown"}), "## [lr_scheduler]"));
  const Json schema = Json::parse(output_of({"config", "schema", "--format", "json"}));
  EXPECT_TRUE(schema["properties"]["training"]["properties"].contains("seq_len"));
  EXPECT_TRUE(contains(refusal_of({"config", "schema", "--format", "yaml"}), "yaml"));
  EXPECT_TRUE(contains(refusal_of({"config", "schema", "optimiser"}), "did you mean \"optimizer\"?"));
}

TEST(Plan, PrintsUnitsOperationsAndThePredictedPeak) {
  const std::string text = output_of({"plan", "--preset", "debug"});
  for (const char* part : {"parameters", "Units", "Blocks", "layers.0", "embedding", "head", "peak"}) {
    EXPECT_TRUE(contains(text, part));
  }
}

TEST(Plan, RefusesWhatTrainRefuses) {
  const TempFolder folder;
  int number = 0;
  for (const Strings& settings :
       std::vector<Strings>{{"optimizer.param_groups=[{pattern = \"nothing\", lr = 1}]"},
                            {"validation.freq=5"},
                            {"data.chat_template=/none/file.jinja"},
                            {"checkpoint.folder=a/b"},
                            {"checkpoint.folder=tokenizer"},
                            {"checkpoint.initial_load_path=/none"},
                            {"tokenizer.type=hf", "tokenizer.path=/none"},
                            {"debug.plant_nan_step=3", "debug.plant_nan_block=layers.9"},
                            {"data.sources=[{path = \"/none.txt\"}]"},
                            {"model.vocab_size=100"},
                            {"training.callbacks=[\"all\", \"all\"]"},
                            {"training.steps=0"},
                            {"data.split=9,x"},
                            {"data.split=9,1"},
                            {"tokenizer.type=bpe"},
                            {"activation_checkpoint.every_n=3"}}) {
    const Strings run = {"preset=debug", "run_dir=" + (folder / format("run-{}", number++)).string()};
    EXPECT_EQ(refusal_of(Strings{"plan"} + run + settings), refusal_of(Strings{"train"} + run + settings))
        << join(settings, " ");
  }
}

TEST(Plan, NamesWhatAPresetLacksForTraining) {
  const std::string text = output_of({"plan", "--preset", "llama3-8b", "--world-size", "8"});
  EXPECT_CONTAINS(text, "`train` needs more than this configuration says:\n  default: data.sources = []: ",
                  "training.steps = 0", "tokenizer.path");
  EXPECT_CONTAINS(text, "\n  These rates are an assumption");
}

TEST(Plan, TakesRanksMemoryAndRatesFromTheMachine) {
  const std::string text = output_of(
      {"plan", "--preset", "llama3-8b", "--machine", "h100-sxm", "--hosts", "2", "precision.compute=bf16"});
  EXPECT_CONTAINS(text, "Rank 0 of 16", "are free on h100-sxm (79.6 GiB less 1.0 GiB of",
                  "on a rank of h100-sxm in bf16: 989.4 TFLOP/s",
                  "\n  These are the peaks of its data sheet");
}

TEST(Plan, ListsTheMachines) {
  EXPECT_CONTAINS(output_of({"plan", "--machine", "list"}), "\n  h100-sxm ", "\n  aws-p5 ", "\n  nvl72 ");
  EXPECT_CONTAINS(refusal_of({"plan", "--preset", "debug", "--machine", "h100sxm"}),
                  "command line: machine.name: \"h100sxm\" is no machine; did you mean \"h100-sxm\"?");
}

TEST(Plan, NamesOptionsThatTheJobDoesNotRead) {
  EXPECT_CONTAINS(output_of({"plan", "--preset", "debug", "precision.reduce=bf16", "comm.backend=nccl"}),
                  "\nnot read on one rank: precision.reduce = \"bf16\"\n",
                  "comm.backend = \"nccl\": its plug-in and GPUs are not checked here");
}

TEST(Plan, SaysHowToStartTheRanksThatDegreesNeed) {
  EXPECT_CONTAINS(
      refusal_of({"plan", "--preset", "debug", "parallelism.data_parallel_shard_degree=2"}),
      "parallelism.data_parallel_shard_degree = 2: 2 ranks are needed, and there is one; start them "
      "with `stepforge launch --nproc 2 train ...`");
}

TEST(Plan, CountsThePublishedParametersOfTheLargestModel) {
  EXPECT_TRUE(contains(output_of({"plan", "--preset", "llama3-405b"}), "405,853,388,800"));
}

TEST(Plan, WritesATraceOfThePredictedStep) {
  const TempFolder folder;
  const std::string trace = (folder / "trace.json").string();
  output_of({"plan", "--preset", "debug", "--trace", trace});
  EXPECT_FALSE(Json::parse(read_file(trace))["traceEvents"].empty());
}

/// Four micro-batches of the tiny model through two ranks.
Strings plan_of_pipeline(const Strings& options) {
  return Strings{"plan",
                 "--preset",
                 "debug",
                 "--world-size",
                 "2",
                 "parallelism.pipeline_parallel_degree=2",
                 "training.local_batch_size=1",
                 "training.global_batch_size=4"} +
         options;
}

TEST(Plan, SaysWhatIsPredictedOfAPipeline) {
  const std::string text = output_of(plan_of_pipeline({"--layout"}));
  EXPECT_CONTAINS(text, "Pipeline: 1F1B, 2 stages on 2 ranks, 4 micro-batches\n");
  EXPECT_CONTAINS(text, "critical path: ");
  EXPECT_CONTAINS(text, "Proved for all ranks: they run 2 programs, one for each rank of a pipeline, over ");
}

TEST(Plan, ComparesSchedules) {
  const std::string text = output_of(plan_of_pipeline({"--compare"}));
  EXPECT_CONTAINS(text, "\n  GPipe ");
  EXPECT_CONTAINS(text, "\n  DualPipeV ");
  EXPECT_EQ(text.find("Step program"), std::string::npos);
  EXPECT_CONTAINS(refusal_of({"plan", "--preset", "debug", "--compare"}),
                  "set parallelism.pipeline_parallel_degree to a number above 1");
}

TEST(Plan, WritesTheScheduleItsPictureAndTheTraceOfAllRanks) {
  const TempFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  output_of(
      plan_of_pipeline({"--schedule", path("a.csv"), "--picture", path("a.svg"), "--trace", path("a.json")}));
  EXPECT_EQ(read_file(path("a.csv")), "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  EXPECT_TRUE(read_file(path("a.svg")).starts_with("<svg"));
  const std::string trace = read_file(path("a.json"));
  EXPECT_CONTAINS(trace, "rank 0, predicted with");
  EXPECT_CONTAINS(trace, "rank 1, predicted with");
  output_of(plan_of_pipeline(
      {"--schedule", path("b.csv"), "parallelism.pipeline_parallel_schedule_csv=" + path("a.csv")}));
  EXPECT_EQ(read_file(path("a.csv")), read_file(path("b.csv")));
  EXPECT_CONTAINS(refusal_of({"plan", "--preset", "debug", "--picture", path("c.svg")}),
                  "the job has no pipeline");
}

}  // namespace
}  // namespace stepforge::testing
