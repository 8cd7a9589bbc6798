// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/known_model.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
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

TEST(KnownModel, WhyAStepIsTakenSaysIfTheRunHasGoneBack) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  for (const int64_t step : {10, 20, 30}) write_run(run, step, Config{});
  const auto starts = [&](const std::string& list) {
    write_file_atomic(run / "run.json", R"({"format_version":1,"starts":[)" + list + "]}");
  };
  EXPECT_EQ(why_step(run, 30), "step 30, the newest of 10, 20, 30");
  starts(R"({"end_step":30,"saved_step":30})");
  EXPECT_EQ(why_step(run, 30), "step 30, the newest of 10, 20, 30");
  starts(R"({"end_step":20,"saved_step":20},{"end_step":28,"saved_step":20})");
  EXPECT_EQ(why_step(run, 30), "step 30, the newest of 10, 20, 30") << "killed before run.json was written";
  starts(R"({"end_step":30,"saved_step":30},{"end_step":24,"saved_step":20})");
  EXPECT_EQ(
      why_step(run, 30),
      "step 30, the newest of 10, 20, 30; the run has gone back since then, and its last start ended at step "
      "24: for its weights, name " +
          (run / "checkpoint/step-20").string());
}

std::string refusal(const fs::path& path) {
  return message_of<UsageError>([&] { settings_from_model(path.string()); });
}

TEST(KnownModel, WhatIsNoModelIsNamedWithTheRemedy) {
  const TempFolder folder;
  for (const char* name :
       {"Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main"})
    EXPECT_CONTAINS(refusal(name), "hf download Qwen/Qwen3-0.6B") << name;
  EXPECT_CONTAINS(refusal("/none/model"), "is not a model: expected");

  const fs::path cache = folder / "models--Qwen--Qwen3-0.6B";
  fs::create_directories(cache / "blobs");
  EXPECT_CONTAINS(refusal(cache), "hf download Qwen/Qwen3-0.6B");
  fs::create_directories(cache / "snapshots" / "abc");
  EXPECT_CONTAINS(refusal(cache), "name one of them, " + (cache / "snapshots" / "abc").string());

  fs::create_directories(folder / "adapter");
  write_file_atomic(folder / "adapter" / "adapter_config.json", R"({"base_model_name_or_path":"org/base"})");
  EXPECT_CONTAINS(refusal(folder / "adapter"), "only an adapter (LoRA) of org/base");
  write_file_atomic(folder / "model.gguf", "GGUF");
  EXPECT_CONTAINS(refusal(folder / "model.gguf"), "llama.cpp");

  fs::create_directories(folder / "weights");
  fs::copy(source_dir() / "tests/golden/models/qwen3/model.safetensors", folder / "weights");
  EXPECT_CONTAINS(refusal(folder / "weights"), "no config.json");
  EXPECT_CONTAINS(refusal(folder / "weights/model.safetensors"), "it is a file; name its folder");
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

TEST(KnownModel, TheSummaryIsALineOfSizes) {
  const auto summary = [](const std::string& preset) {
    return model_summary(
        load_config(std::nullopt, std::vector<std::string>{"preset=" + preset}).config.model);
  };
  EXPECT_EQ(
      summary("llama3-8b"),
      "llama, 32 layers, dim 4096, 32 heads (8 of keys), ffn_dim 14336, vocabulary 128,256, context 8,192");
  EXPECT_TRUE(summary("mixtral-8x7b").ends_with(", 2 of 8 experts"));
}

}  // namespace
}  // namespace stepforge::testing
