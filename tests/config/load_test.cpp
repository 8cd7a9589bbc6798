// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/load.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>
#include <unistd.h>

#include "stepforge/base/format.h"
#include "stepforge/config/schema_docs.h"
#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

TEST(LoadConfig, ReturnsTheDefaultsWithoutAnySource) {
  const LoadedConfig loaded = load_config(std::nullopt);
  EXPECT_EQ(loaded.config, Config{});
  EXPECT_EQ(where(loaded, "training.steps"), "default");
}

TEST(LoadConfig, FileOverridesPresetAndCommandLineOverridesFile) {
  const std::string text = "preset = \"debug\"\n[model]\ndim = 128\nn_layers = 3\n";
  const Config config = parsed(text, {"model.n_layers=2"}).config;
  EXPECT_EQ(config.model.ffn_dim, 176);  // preset
  EXPECT_EQ(config.model.dim, 128);      // file
  EXPECT_EQ(config.model.n_layers, 2);   // command line
  EXPECT_EQ(config.model.dropout, 0.0);  // default
}

TEST(LoadConfig, PresetOnTheCommandLineReplacesThePresetOfTheFile) {
  const Config config = parsed("preset = \"debug\"\n", {"preset=llama3-8b"}).config;
  EXPECT_EQ(config.model.dim, 4096);
  EXPECT_EQ(config.data.sources, std::vector<DataSourceConfig>{});
  EXPECT_EQ(config.preset, "llama3-8b");
  EXPECT_EQ(parsed("preset = \"debug\"\n", {"preset="}).config.model, ModelConfig{});
}

TEST(LoadConfig, LastOverrideOfAFieldWins) {
  EXPECT_EQ(parsed("", {"training.steps=1", "--training.steps=2"}).config.training.steps, 2);
}

TEST(LoadConfig, RecordsTheOriginOfEachValue) {
  const std::string text = "preset = \"debug\"\n\n[training]\n  seed = 7\n";
  const LoadedConfig loaded = parsed(text, {"optimizer.lr=0.1"});
  EXPECT_EQ(where(loaded, "preset"), "run.toml:1:10");
  EXPECT_EQ(where(loaded, "training.seed"), "run.toml:4:10");
  EXPECT_EQ(where(loaded, "optimizer.lr"), "command line");
  EXPECT_EQ(where(loaded, "model.dim"), "preset debug");
  EXPECT_EQ(where(loaded, "metrics.smoothing"), "default");
}

TEST(LoadConfig, RecordsTheOriginsOfListElementsAndTableFields) {
  const std::string text =
      "preset = \"llama3.1-8b\"\n[data]\nsources = [\n  { path = \"a\", weight = 2 },\n]\n";
  const LoadedConfig loaded = parsed(text, {"data.sources.0.weight=3", "model.rope_scaling.factor=4"});
  EXPECT_EQ(where(loaded, "data.sources"), "run.toml:3:11");
  EXPECT_EQ(where(loaded, "data.sources.0"), "run.toml:4:3");
  EXPECT_EQ(where(loaded, "data.sources.0.path"), "run.toml:4:12");
  EXPECT_EQ(where(loaded, "data.sources.0.weight"), "command line");
  EXPECT_EQ(where(loaded, "data.sources.0.format"), "run.toml:4:3");
  EXPECT_EQ(where(loaded, "model.rope_scaling.type"), "preset llama3.1-8b");
  EXPECT_EQ(where(loaded, "model.rope_scaling"), "command line, preset llama3.1-8b");
}

TEST(LoadConfig, ForgetsTheOriginsOfAReplacedList) {
  const LoadedConfig loaded =
      parsed("[data]\nsources = [{ path = \"a\" }, { path = \"b\" }]\n", {"data.sources=[{path=\"c\"}]"});
  EXPECT_EQ(loaded.config.data.sources, (std::vector<DataSourceConfig>{{.path = "c"}}));
  EXPECT_EQ(where(loaded, "data.sources.0.path"), "command line");
  EXPECT_FALSE(loaded.origins.contains("data.sources.1.path"));
}

TEST(LoadConfig, MergesNestedTablesAndReplacesLists) {
  const std::string text = "preset = \"llama3.2-1b\"\n[model.rope_scaling]\nlow_freq_factor = 2\n";
  const Config config = parsed(text).config;
  EXPECT_EQ(config.model.rope_scaling, (RopeScalingConfig{RopeScalingType::llama3, 32.0, 2.0, 4.0, 8192}));
  EXPECT_EQ(parsed("preset = \"debug\"\n[data]\nsources = []\n").config.data.sources.size(), 0U);
}

TEST(LoadConfig, ReadsEveryTypeOfField) {
  const std::string text = R"(
run_dir = "runs/é"
[model]
tie_embeddings = true
norm_eps = 1
[training]
steps = 1_000
[activation_checkpoint]
mode = "blocks"
blocks = [0, 2]
[checkpoint]
allow_changed = ["data", "seed"]
[[optimizer.param_groups]]
pattern = "embed"
lr = 1e-4
[[optimizer.param_groups]]
pattern = "norm"
)";
  const Config config = parsed(text).config;
  EXPECT_EQ(config.run_dir, "runs/é");
  EXPECT_TRUE(config.model.tie_embeddings);
  EXPECT_EQ(config.model.norm_eps, 1.0);
  EXPECT_EQ(config.training.steps, 1000);
  EXPECT_EQ(config.activation_checkpoint.blocks, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(config.checkpoint.allow_changed, (std::vector{Guard::data, Guard::seed}));
  const std::vector<ParamGroupConfig> groups{{.pattern = "embed", .lr = 1e-4}, {.pattern = "norm"}};
  EXPECT_EQ(config.optimizer.param_groups, groups);
}

TEST(LoadConfig, RefusesWrongTypesWithPlaceValueRuleAndRemedy) {
  EXPECT_EQ(error_of("[training]\n\n    steps = \"ten\"\n"),
            "run.toml:3:13: training.steps = \"ten\": expected an integer (0 to 1e12); the default is 0");
  EXPECT_EQ(
      error_of("[training]\nsteps = \"10\"\n"),
      "run.toml:2:9: training.steps = \"10\": expected an integer (0 to 1e12); write 10 without quotes");
  EXPECT_EQ(error_of("[training]\nsteps = 1e3\n"),
            "run.toml:2:9: training.steps = 1000.0: expected an integer (0 to 1e12); write 1000");
  EXPECT_EQ(error_of("[checkpoint]\nenable = 1\n"),
            "run.toml:2:10: checkpoint.enable = 1: expected true or false; the default is true");
  EXPECT_EQ(error_of("[checkpoint]\nenable = \"true\"\n"),
            "run.toml:2:10: checkpoint.enable = \"true\": expected true or false; write true without quotes");
  EXPECT_EQ(error_of("run_dir = 8\n"),
            "run.toml:1:11: run_dir = 8: expected a non-empty string; write \"8\"");
  EXPECT_EQ(error_of("run_dir = \"\"\n"),
            "run.toml:1:11: run_dir = \"\": expected a non-empty string; the default is \"runs/default\"");
  EXPECT_EQ(error_of("training = 3\n"), "run.toml:1:12: training = 3: expected a table");
  EXPECT_EQ(error_of("[[training]]\nsteps = 3\n"),
            "run.toml:1:1: training = [{ steps = 3 }]: expected a table");
  EXPECT_EQ(error_of("[data]\nseed = 2026-01-01\n"),
            "run.toml:2:8: data.seed = a date or time: expected an integer (0 to 1e15); the default is 42");
  EXPECT_EQ(
      error_of("run_dir = \"a\\u0000b\"\n"),
      "run.toml:1:11: run_dir = \"a\\u0000b\": expected a non-empty string; the default is \"runs/default\"");
}

TEST(LoadConfig, RefusesWrongLists) {
  EXPECT_EQ(error_of("[activation_checkpoint]\nblocks = 3\n"),
            "run.toml:2:10: activation_checkpoint.blocks = 3: expected a list of integers (each 0 to 9999); "
            "write [3]");
  EXPECT_EQ(error_of("[activation_checkpoint]\nmode = \"regions\"\nregions = [\"mlp\", \"atention\"]\n"),
            "run.toml:3:11: activation_checkpoint.regions = [\"mlp\", \"atention\"]: expected a list of any "
            "of \"attention\", \"mlp\"; did you mean \"attention\"?");
  EXPECT_EQ(error_of("[data]\nsources = [{ path = 3 }, 4]\n"),
            "2 errors in the configuration:\n"
            "  run.toml:2:21: data.sources.0.path = 3: expected a string; write \"3\"\n"
            "  run.toml:2:26: data.sources.1 = 4: expected a table with the keys path, kind, weight, field, "
            "format, loss_on, dataset, name, epochs, combine, sources");
}

TEST(LoadConfig, RefusesNumbersOutOfRange) {
  EXPECT_EQ(error_of("[training]\nsteps = -5\n"),
            "run.toml:2:9: training.steps = -5: expected an integer (0 to 1e12); the default is 0");
  EXPECT_EQ(
      error_of("[checkpoint]\nkeep_latest_k = 1\n"),
      "run.toml:2:17: checkpoint.keep_latest_k = 1: expected an integer (0, or 2 to 1e9); the default is 10");
  EXPECT_EQ(error_of("[training]\nglobal_batch_size = 0\n"),
            "run.toml:2:21: training.global_batch_size = 0: expected an integer (-1, or 1 to 2^24); "
            "the default is -1");
  for (const char* value : {"-1", "0", "0.0"}) {
    EXPECT_CONTAINS(error_of(format("[data]\nsources = [{{ path = \"a\", weight = {} }}]\n", value)),
                    "expected a number (above 0 and at most 1e9); the default is 1.0")
        << value;
  }
  for (const char* value : {"nan", "inf", "-inf", "1.0"}) {
    EXPECT_CONTAINS(error_of(format("[optimizer]\nbeta1 = {}\n", value)), "(at least 0 and below 1)")
        << value;
  }
}

TEST(LoadConfig, SuggestsTheNearestChoice) {
  EXPECT_EQ(error_of("[precision]\ncompute = \"bf61\"\n"),
            "run.toml:2:11: precision.compute = \"bf61\": expected one of \"fp32\", "
            "\"bf16\"; did you mean \"bf16\"?");
}

TEST(LoadConfig, SuggestsAKeyForAnUnknownKey) {
  EXPECT_EQ(error_of("[training]\nstepz = 3\n"),
            "run.toml:2:1: training.stepz: unknown key; did you mean training.steps?");
  EXPECT_EQ(error_of("[training]\nlr = 3\n"), "run.toml:2:1: training.lr: unknown key; use optimizer.lr");
  EXPECT_EQ(error_of("[trainin]\nsteps = 3\n"),
            "run.toml:1:2: trainin: unknown section or key; did you mean [training]?");
  EXPECT_EQ(error_of("steps = 3\n"),
            "run.toml:1:1: steps: unknown section or key; did you mean training.steps or validation.steps?");
  EXPECT_EQ(error_of("[precision]\nxyzzy = 3\n"),
            "run.toml:2:1: precision.xyzzy: unknown key; known keys: compute, reduce");
  EXPECT_EQ(error_of("", {"training.accelerator=cuda"}),
            "command line: training.accelerator: unknown key; use training.device");
  EXPECT_EQ(error_of("", {"model.rope_scaling.fctor=1"}),
            "command line: model.rope_scaling.fctor: unknown key; did you mean model.rope_scaling.factor?");
  EXPECT_EQ(error_of("[data]\nsources = [{ path = \"a\", wieght = 3 }]\n"),
            "run.toml:2:26: data.sources.0.wieght: unknown key; did you mean data.sources.0.weight?");
}

TEST(LoadConfig, ReportsAllErrorsInTheOrderOfFileThenCommandLineThenRules) {
  const std::string text =
      "[training]\nseed = -1\nepoks = 3\n[checkpoint]\ninterval = 0\n[model]\nn_kv_heads = 3\n";
  EXPECT_EQ(error_of(text, {"metrics.smoothing=2", "nonsense"}),
            "6 errors in the configuration:\n"
            "  run.toml:2:8: training.seed = -1: expected an integer (0 to 1e15); the default is 42\n"
            "  run.toml:3:1: training.epoks: unknown key; did you mean training.epochs?\n"
            "  run.toml:5:12: checkpoint.interval = 0: expected an integer (1 to 1e12); the default is 500\n"
            "  command line: metrics.smoothing = 2: expected a number (at least 0 and below 1); the default "
            "is 0.9\n"
            "  command line: \"nonsense\": expected SECTION.KEY=VALUE\n"
            "  default: model.n_heads = 8 and run.toml:7:14: model.n_kv_heads = 3: n_heads must be a "
            "multiple of n_kv_heads");
}

TEST(LoadConfig, RulesSkipRefusedFields) {
  EXPECT_EQ(
      error_of("[model]\nn_heads = 7\nn_kv_heads = \"7\"\ndim = 14\n"),
      "run.toml:3:14: model.n_kv_heads = \"7\": expected an integer (1 to 2^16); write 7 without quotes");
}

TEST(LoadConfig, ReportsLineAndColumnOfSyntaxErrorsAndDuplicateKeys) {
  EXPECT_EQ(error_of("[training]\nsteps = 1\nsteps = 2\n"),
            "run.toml:3:9: not valid TOML: Error while parsing key-value pair: cannot redefine existing "
            "integer 'steps'; a key may appear only once");
  EXPECT_TRUE(error_of("[training]\nsteps = = 1\n").starts_with("run.toml:2:9: not valid TOML: "));
  EXPECT_TRUE(error_of("run_dir = \"\xff\"\n")
                  .starts_with("run.toml:1:11: not valid TOML: Encountered invalid utf-8"));
}

TEST(LoadConfig, SuggestsAndListsPresetsForAnUnknownPreset) {
  const std::string error = error_of("preset = \"llama3-8\"\n[model]\nn_kv_heads = 3\n");
  EXPECT_TRUE(
      error.starts_with("run.toml:1:10: preset = \"llama3-8\": unknown preset; did you mean \"llama3-8b\"? "
                        "known presets: debug, deepseek-v2-lite, deepseek-v2, deepseek-v3, demo,"))
      << error;
  EXPECT_FALSE(testing::contains(error, "n_kv_heads"));  // other rules are not checked
  EXPECT_CONTAINS(error_of("", {"preset=qwen3-0.6"}), "command line: preset = \"qwen3-0.6\": unknown preset");
}

TEST(LoadConfig, RefusedConfigurationsExitWithTheUsageCode) {
  try {
    parsed("x = 1\n");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::usage);
  }
}

class LoadConfigFile : public ::testing::Test {
 protected:
  LoadConfigFile()
      : folder_(fs::path(::testing::TempDir()) / format("config_load_{}", static_cast<int64_t>(getpid()))) {
    fs::create_directories(folder_);
  }
  ~LoadConfigFile() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  static std::string error_of_file(const fs::path& path) {
    try {
      load_config(path);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }

  fs::path folder_;
};

TEST_F(LoadConfigFile, OriginsNameTheFileAsItWasGiven) {
  const fs::path path = write("run.toml", "[training]\nsteps = 3\n");
  const LoadedConfig loaded = load_config(path);
  EXPECT_EQ(loaded.config.training.steps, 3);
  EXPECT_EQ(where(loaded, "training.steps"), path.string() + ":2:9");
}

TEST_F(LoadConfigFile, MissingOrUnreadableIsAUsageError) {
  const std::string path = (folder_ / "none.toml").string();
  EXPECT_EQ(error_of_file(path),
            format("configuration file {}: cannot open {}: No such file or directory", path, path));
  EXPECT_CONTAINS(error_of_file(folder_), "is not a regular file");
  EXPECT_CONTAINS(error_of_file("llama3-8b"), "; a preset has this name: write preset=llama3-8b");
}

TEST_F(LoadConfigFile, LargerThanFourMebibytesIsRefused) {
  EXPECT_EQ(error_of_file(write("large.toml", std::string(size_t{4} << 20, '\n'))), "");
  EXPECT_CONTAINS(error_of_file(write("larger.toml", std::string((size_t{4} << 20) + 1, '\n'))),
                  "holds 4194305 bytes; at most 4194304 are accepted here");
}

TEST(LoadConfig, RefusesRenamedKeysAndChoicesWithTheirNewName) {
  EXPECT_EQ(error_of("[parallelism]\nfsdp_cut = \"dimension\"\n"),
            "run.toml:2:1: parallelism.fsdp_cut: was renamed to parallelism.fsdp_partition (interval is now "
            "flat, whole_tensor is by_tensor, dimension is by_dim)");
  EXPECT_EQ(error_of("", {"parallelism.fsdp_partition=whole_tensor"}),
            "command line: parallelism.fsdp_partition = \"whole_tensor\": expected one of \"flat\", "
            "\"by_tensor\", \"by_dim\"; was renamed to \"by_tensor\"");
  EXPECT_EQ(error_of("[activation_checkpoint]\nmode = \"segments\"\nsegments = [\"mlp\"]\n"),
            "2 errors in the configuration:\n"
            "  run.toml:2:8: activation_checkpoint.mode = \"segments\": expected one of \"none\", \"full\", "
            "\"every_n\", \"blocks\", \"regions\", \"calls\", \"budget\"; was renamed to \"regions\"\n"
            "  run.toml:3:1: activation_checkpoint.segments: was renamed to activation_checkpoint.regions");
}

TEST(LoadConfig, ParsesChoicesIntoEnumsAndPrintsTheirNames) {
  const Config config = parsed("", {"model.rope_scaling.type=llama3", "training.norm_type=inf",
                                    "parallelism.fsdp_reshard_after_forward=default", "precision.reduce=fp16",
                                    "comm.backend=auto", "activation_checkpoint.mode=regions",
                                    "activation_checkpoint.regions=mlp,attention"})
                            .config;
  EXPECT_EQ(config.model.rope_scaling.type, RopeScalingType::llama3);
  EXPECT_EQ(config.training.norm_type, ClipNorm::inf);
  EXPECT_EQ(config.parallelism.fsdp_reshard_after_forward, ReshardMode::by_default);
  EXPECT_EQ(config.precision.reduce, DType::f16);
  EXPECT_EQ(config.comm.backend, CommBackend::automatic);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::regions);
  EXPECT_EQ(config.activation_checkpoint.regions,
            (std::vector{RecomputeRegion::mlp, RecomputeRegion::attention}));
  EXPECT_EQ(parsed(config_toml(config)).config, config);
}

TEST_F(LoadConfigFile, TheConfigTomlOfAMovedRunSetsRunDirToItsCurrentFolder) {
  fs::create_directories(folder_ / "checkpoint");
  const fs::path file = write("config.toml", "run_dir = \"runs/gone\"\n");
  EXPECT_EQ(load_config(file).config.run_dir, folder_.string());
  const std::vector<std::string> overrides = {"run_dir=elsewhere"};
  EXPECT_EQ(load_config(file, overrides).config.run_dir, "elsewhere");
  fs::remove(folder_ / "checkpoint");
  EXPECT_EQ(load_config(file).config.run_dir, "runs/gone");
}

Strings settings_of_tiny_model(const std::string&, const std::shared_ptr<const Registry>&) {
  return {"model.dim=64", "model.vocab_size=300", "tokenizer.type=\"hf\"", "tokenizer.path=\"tiny\"",
          "optimizer.lr=2e-5"};
}

LoadedConfig from_tiny(const std::string& text, const Strings& overrides = {}) {
  return parse_config("[model]\nfrom = \"tiny\"\n" + text, "run.toml", overrides, ConfigUse::inspect,
                      settings_of_tiny_model);
}

TEST(LoadConfig, ModelFromComesBetweenPresetAndFile) {
  const LoadedConfig loaded =
      parse_config("preset = \"debug\"\n[optimizer]\nlr = 1e-4\n", "run.toml", Strings{"model.from=tiny"},
                   ConfigUse::inspect, settings_of_tiny_model);
  EXPECT_EQ(loaded.config.model.dim, 64);
  EXPECT_EQ(loaded.config.tokenizer.path, "tiny");
  EXPECT_EQ(loaded.config.optimizer.lr, 1e-4);
  EXPECT_EQ(where(loaded, "model.dim"), "model.from tiny");
  EXPECT_EQ(where(loaded, "model.n_layers"), "preset debug");
  EXPECT_EQ(taken_from_model(loaded), (Strings{"model.dim = 64", "model.vocab_size = 300",
                                               "tokenizer.path = \"tiny\"", "tokenizer.type = \"hf\""}));
}

TEST(LoadConfig, KeysBesideModelFromMustAgreeWithTheModel) {
  EXPECT_EQ(message_of<UsageError>([] { from_tiny("dim = 128\n"); }),
            "run.toml:3:7: model.dim = 128: the model in tiny has 64; "
            "remove the key, or accept the difference with checkpoint.allow_changed = [\"model\"]");
  EXPECT_EQ(from_tiny("dim = 64\n").config.model.dim, 64);
  EXPECT_EQ(from_tiny("dropout = 0.1\nmax_position = 4096\n").config.model.dropout, 0.1);
  EXPECT_EQ(from_tiny("dim = 128\n", {"checkpoint.allow_changed=model"}).config.model.dim, 128);
}

TEST(LoadConfig, AVocabularyBesideModelFromMayOnlyGrow) {
  EXPECT_EQ(from_tiny("vocab_size = 301\n").config.model.vocab_size, 301);
  EXPECT_CONTAINS(message_of<UsageError>([] { from_tiny("vocab_size = 299\n"); }), "may only grow");
}

TEST(LoadConfig, ARewardModelHasAScoreWhateverItStartsFrom) {
  const std::string whole = "[data]\npacking = \"best_fit\"\n";
  const std::string reward = "[preference]\nloss = \"reward\"\n" + whole;
  EXPECT_TRUE(from_tiny(reward).config.model.scores());
  EXPECT_EQ(where(from_tiny(reward), "model.head"), "run.toml:4:8");
  const Config config = parsed(reward).config;
  EXPECT_TRUE(config.model.scores());
  EXPECT_EQ(parsed(config_toml(config)).config, config);
  EXPECT_FALSE(parsed("[preference]\nloss = \"dpo\"\n" + whole).config.model.scores());
  EXPECT_CONTAINS(message_of<UsageError>([&] { parsed(reward + "[model]\nhead = \"vocabulary\"\n"); }),
                  "in place of a vocabulary; remove model.head");
  EXPECT_TRUE(parsed("[model]\nhead = \"score\"\n").config.model.scores()) << "to be read, not to be trained";
}

TEST(LoadConfig, RefusesModelFromWhereModelsCannotBeRead) {
  EXPECT_CONTAINS(message_of<UsageError>([] { parsed("[model]\nfrom = \"tiny\"\n"); }),
                  "run.toml:2:8: model.from = \"tiny\": models on disk cannot be read here");
}

TEST(LoadConfig, ConversationsArePackedByBestFitUnlessAPackingIsSet) {
  const auto packing = [](const std::string& data) {
    return parse_config("[data]\n" + data, "run.toml").config.data.packing;
  };
  for (const char* format_name : {"messages", "sharegpt", "alpaca", "prompt_completion"}) {
    const std::string source = std::string("{path = \"a\", format = \"") + format_name + "\"}";
    EXPECT_EQ(packing("sources = [" + source + "]"), Packing::best_fit) << format_name;
    EXPECT_EQ(packing("sources = [{path = \"b\"}, {sources = [" + source + "]}]"), Packing::best_fit);
    EXPECT_EQ(packing("packing = \"concat\"\nsources = [" + source + "]"), Packing::concat);
  }
  EXPECT_EQ(packing("sources = [{path = \"a\", dataset = \"chat\"}]"), Packing::best_fit);
  EXPECT_EQ(packing("sources = [{path = \"a\"}]"), Packing::concat);
  // What older runs have written stays.
  EXPECT_EQ(parse_stored_config("[data]\nsources = [{path = \"a\", format = \"messages\"}]", "state.json")
                .data.packing,
            Packing::concat);
}

TEST(LoadConfig, AcceptsSynonymsOfChoicesAndBooleans) {
  const Config config = parsed(
                            "[optimizer]\nname = \"AdamW\"\n[precision]\ncompute = \"bfloat16\"\nreduce = "
                            "\"float32\"\n[checkpoint]\n"
                            "enable = \"no\"\n",
                            {"data.shuffle=yes", "checkpoint.export_dtype=float16"})
                            .config;
  EXPECT_EQ(config.optimizer.name, "adamw");
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.precision.reduce, DType::f32);
  EXPECT_EQ(config.checkpoint.export_dtype, DType::f16);
  EXPECT_FALSE(config.checkpoint.enable);
  EXPECT_TRUE(config.data.shuffle);
}

TEST(LoadConfig, RecognizesYamlAndSuggestsConvert) {
  EXPECT_TRUE(contains(error_of("# a run\nmodel:\n  dim: 3\n"),
                       "this looks like YAML, but configurations are TOML; `stepforge config convert "
                       "run.toml` translates it"));
  EXPECT_CONTAINS(error_of("[training]\nsteps: 3\n"), "not valid TOML");
}

}  // namespace
}  // namespace stepforge::testing
