// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/known_model.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema_docs.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

LoadedConfig config_from(const fs::path& model) {
  const std::vector<std::string> overrides = {"model.from=\"" + model.string() + "\""};
  return load_config(std::nullopt, overrides, ConfigUse::inspect, settings_from_model);
}

/// A run folder with a byte tokenizer and a checkpoint of `step`, without weights.
void write_run(const fs::path& folder, int64_t step, const Config& config) {
  const fs::path checkpoint = folder / "checkpoint" / ("step-" + std::to_string(step));
  fs::create_directories(checkpoint);
  write_file_atomic(folder / "config.toml", config_toml(config));
  write_file_atomic(checkpoint / "state.json", Json{{"config", config_toml(config)}}.dump());
  write_file_atomic(checkpoint / "manifest.json", "{}");
}

TEST(KnownModel, AHuggingFaceFolderGivesArchitectureTokenizerAndWeights) {
  const fs::path folder = source_dir() / "tests/golden/models/qwen3";
  const Config config = config_from(folder).config;
  EXPECT_EQ(config.model.family, "qwen3");
  EXPECT_EQ(config.checkpoint.initial_load_path, folder.string());
  EXPECT_EQ(config.tokenizer.type, TokenizerType::hf);
  EXPECT_EQ(config.optimizer.lr, 2e-5);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 20);
  EXPECT_EQ(config.model, known_hf_folder(folder).config.model);
}

/// transformers saves the number of such layers in config.json, and not their weights.
TEST(KnownModel, LayersOfMultiTokenPredictionAreThoseWhoseWeightsAreThere) {
  const fs::path golden = source_dir() / "tests/golden/models";
  EXPECT_EQ(known_hf_folder(golden / "deepseek_v3_mtp").config.model.n_mtp_layers, 2);
  const TempFolder folder;
  Json config = read_json_file(golden / "deepseek_v3_mtp/config.json");
  config["num_nextn_predict_layers"] = 3;
  write_file_atomic(folder / "config.json", config.dump());
  EXPECT_EQ(known_hf_folder(folder.path()).config.model.n_mtp_layers, 3) << "there are no weights";
  fs::copy(golden / "deepseek_v3_mtp/model.safetensors", folder / "model.safetensors");
  EXPECT_EQ(known_hf_folder(folder.path()).config.model.n_mtp_layers, 2);
}

TEST(KnownModel, OfLayersOfMultiTokenPredictionSomeMayBeLeftOut) {
  const fs::path folder = source_dir() / "tests/golden/models/deepseek_v3_mtp";
  const auto with_layers = [&](int layers) {
    const std::vector<std::string> overrides = {"model.from=\"" + folder.string() + "\"",
                                                "model.mtp_loss_weight=0.1",
                                                "model.n_mtp_layers=" + std::to_string(layers)};
    return load_config(std::nullopt, overrides, ConfigUse::inspect, settings_from_model).config;
  };
  EXPECT_EQ(with_layers(1).model.n_mtp_layers, 1);
  EXPECT_EQ(with_layers(1).model.mtp_loss_weight, 0.1);
  EXPECT_CONTAINS(message_of<UsageError>([&] { with_layers(3); }), "model.n_mtp_layers = 3");
}

TEST(KnownModel, ARunGivesItsNewestCheckpoint) {
  const TempFolder folder;
  Config config;
  config.model.dim = 48;
  write_run(folder / "run", 2, config);
  config.model.dim = 64;
  write_run(folder / "run", 10, config);
  const Config loaded = config_from(folder / "run").config;
  EXPECT_EQ(loaded.model.dim, 64);
  EXPECT_EQ(loaded.tokenizer.type, TokenizerType::bytes);
  EXPECT_EQ(fs::path(loaded.checkpoint.initial_load_path), folder / "run" / "checkpoint" / "step-10");
  EXPECT_EQ(config_from(folder / "run" / "checkpoint" / "step-2").config.model.dim, 48);
}

TEST(KnownModel, ATemplateOfARunWithoutTokenizerFilesIsTaken) {
  const TempFolder folder;
  write_run(folder / "run", 1, {});
  folder.write("run/tokenizer/chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(fs::path(config_from(folder / "run").config.data.chat_template),
            folder / "run" / "tokenizer" / "chat_template.jinja");
}

TEST(KnownModel, RefusesAFolderWithoutAModel) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>([&] { config_from(folder.path()); }), "is not a model: expected");
  folder.write("config.toml", "");
  EXPECT_CONTAINS(message_of<UsageError>([&] { config_from(folder.path()); }),
                  "has no complete checkpoint yet");
}

TEST(KnownModel, SaysWhichSettingsAreDefaultsOfAFineTune) {
  EXPECT_TRUE(is_fine_tune_default("optimizer.lr = 2e-05"));
  EXPECT_FALSE(is_fine_tune_default("model.dim = 64"));
}

}  // namespace
}  // namespace stepforge::testing
