// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/presets.h"

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/config/schema_docs.h"
#include "tests/config/config_testing.h"
#include "tests/config/published_parameters.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

Config preset_config(std::string_view name) {
  return load_config(std::nullopt, Strings{format("preset={}", name)}).config;
}

/// Of attention with latents, and of its norms.
int64_t latent_attention(const ModelConfig& model) {
  const int64_t queries = model.n_heads * (model.qk_nope_head_dim + model.qk_rope_head_dim);
  const int64_t q =
      model.q_lora_rank == 0 ? queries * model.dim : model.q_lora_rank * (model.dim + 1 + queries);
  const int64_t latent = (model.kv_lora_rank + model.qk_rope_head_dim) * model.dim + model.kv_lora_rank;
  const int64_t heads = model.n_heads * (model.qk_nope_head_dim + model.v_head_dim);
  return q + latent + heads * model.kv_lora_rank + model.n_heads * model.v_head_dim * model.dim;
}

/// Of a layer: of the four projections, sinks, the router, the experts.
int64_t gpt_oss_biases(const ModelConfig& model) {
  return model.head_dim * (model.n_heads + 2 * model.n_kv_heads) + model.dim + model.n_heads +
         model.n_experts * (1 + 2 * model.ffn_dim + model.dim);
}

/// With its gate.
int64_t gated_shared_expert(const ModelConfig& model) {
  return model.shared_expert_dim > 0 ? 3 * model.dim * model.shared_expert_dim + model.dim : 0;
}

/// Parameters of the published architectures: projections without biases, gated MLP, two norms per layer.
int64_t parameter_count(const ModelConfig& model) {
  const int64_t head = model.head_dim > 0 ? model.head_dim : model.dim / model.n_heads;
  const int64_t attention = model.kv_lora_rank > 0
                                ? latent_attention(model)
                                : model.dim * head * (2 * model.n_heads + 2 * model.n_kv_heads);
  const std::map<std::string, int64_t> further = {
      {"llama", 0},
      {"mistral", 0},
      {"qwen2", head * (model.n_heads + 2 * model.n_kv_heads)},
      {"qwen3", 2 * head},
      {"olmo2", head * (model.n_heads + model.n_kv_heads)},
      {"gemma2", 2 * model.dim},
      {"gemma3", 2 * model.dim + 2 * head},
      {"qwen3_moe", 2 * head},
      {"qwen2_moe", head * (model.n_heads + 2 * model.n_kv_heads)},
      {"mixtral", 0},
      {"deepseek_v2", 0},
      {"deepseek_v3", 0},
      {"gpt_oss", gpt_oss_biases(model)}};
  const int64_t hidden = model.moe_ffn_dim > 0 ? model.moe_ffn_dim : model.ffn_dim;
  const int64_t correction = model.family == "deepseek_v3" ? model.n_experts : 0;
  const int64_t experts = model.n_experts * (3 * model.dim * hidden + model.dim) + correction +
                          model.n_shared_experts * 3 * model.dim * hidden + gated_shared_expert(model);
  const int64_t dense = model.n_experts > 0 ? model.first_dense_layers : model.n_layers;
  const int64_t mlps = dense * 3 * model.dim * model.ffn_dim + (model.n_layers - dense) * experts;
  const int64_t layer = attention + further.at(model.family) + 2 * model.dim;
  const int64_t embedding = model.vocab_size * model.dim;
  return model.n_layers * layer + mlps + model.dim + (model.tie_embeddings ? embedding : 2 * embedding);
}

TEST(Presets, HaveThePublishedParameterCounts) {
  for (const auto& [name, count] : kPublishedParameters)
    EXPECT_EQ(parameter_count(preset_config(name).model), count) << name;
  EXPECT_EQ(kPublishedParameters.size() + 2, embedded_presets().size())
      << "a preset has no published count in this test";
}

TEST(Presets, DemoHasSixAndAHalfMillionParameters) {
  Config demo = preset_config("demo");
  demo.model.vocab_size = demo.tokenizer.vocab_size;
  EXPECT_EQ(human_count(parameter_count(demo.model)), "6.52M");
}

TEST(Presets, AllLoadWithoutErrors) {
  for (const EmbeddedFile& preset : embedded_presets())
    EXPECT_NO_THROW(preset_config(preset.name)) << preset.name;
}

TEST(Presets, EqualTheFilesOfTheSourceTree) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "presets")) {
    if (entry.path().extension() != ".toml") continue;
    const std::string name = entry.path().stem().string();
    names.insert(name);
    const EmbeddedFile* preset = find_preset(name);
    ASSERT_NE(preset, nullptr) << name;
    EXPECT_EQ(preset->text, read_file(entry.path())) << name;
  }
  EXPECT_EQ(names.size(), embedded_presets().size());
}

TEST(Presets, CanBeBasedOnAnotherPreset) {
  Config base = preset_config("llama3.1-405b");
  base.preset = "llama3-405b";
  EXPECT_EQ(preset_config("llama3-405b"), base);
}

TEST(Presets, LongContextModelsUseRopeScaling) {
  EXPECT_EQ(preset_config("llama3-8b").model.rope_scaling.type, RopeScalingType::none);
  EXPECT_EQ(preset_config("llama3.1-8b").model.rope_scaling,
            (RopeScalingConfig{RopeScalingType::llama3, 8.0, 1.0, 4.0, 8192}));
  EXPECT_EQ(preset_config("llama3.2-3b").model.rope_scaling,
            (RopeScalingConfig{RopeScalingType::llama3, 32.0, 1.0, 4.0, 8192}));
  EXPECT_EQ(preset_config("llama3.2-3b").model.max_position, 131072);
}

TEST(Presets, AreUnchangedByPrintingAndLoading) {
  for (const EmbeddedFile& preset : embedded_presets()) {
    const Config config = preset_config(preset.name);
    EXPECT_EQ(parsed(config_toml(config)).config, config) << preset.name;
    EXPECT_EQ(parsed(config_toml(config, true)).config, config) << preset.name;
  }
}

}  // namespace
}  // namespace stepforge::testing
