// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/families.h"

#include <cmath>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/config/load.h"
#include "stepforge/config/presets.h"
#include "stepforge/modelspec/call_budget.h"
#include "tests/catalog/all_families.h"
#include "tests/config/published_parameters.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelConfig preset(const std::string& name) {
  const std::vector<std::string> overrides = {"preset=" + name};
  return load_config({}, overrides).config.model;
}

ModelConfig tiny(const std::string& family, bool tied = false) {
  ModelConfig config;
  config.family = family;
  config.dim = 32;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 12;
  config.ffn_dim = 56;
  config.vocab_size = 100;
  config.tie_embeddings = tied;
  if (!has_setting(find_family(family), "n_experts")) return config;
  config.n_experts = 4;
  config.experts_per_token = 2;
  if (has_setting(find_family(family), "moe_ffn_dim")) config.moe_ffn_dim = 20;
  if (has_setting(find_family(family), "shared_expert_dim")) config.shared_expert_dim = 28;
  if (!find_family(family).traits.latent()) return config;
  config.n_shared_experts = 2;
  config.n_kv_heads = 4;
  config.head_dim = 0;
  config.q_lora_rank = family == "deepseek_v3" ? 18 : 0;
  config.kv_lora_rank = 14;
  config.qk_nope_head_dim = 6;
  config.qk_rope_head_dim = 4;
  config.v_head_dim = 7;
  return config;
}

using Tensors = std::map<std::string, std::vector<int64_t>>;

/// Of a layer with 4 experts, after "model.layers.0.".
Tensors expert_tensors(const std::string& family) {
  if (family == "gpt_oss") {
    return {{"mlp.router.weight", {4, 32}},
            {"mlp.router.bias", {4}},
            {"mlp.experts.gate_up_proj", {4, 32, 112}},
            {"mlp.experts.gate_up_proj_bias", {4, 112}},
            {"mlp.experts.down_proj", {4, 56, 32}},
            {"mlp.experts.down_proj_bias", {4, 32}}};
  }
  const bool mixtral = family == "mixtral";
  const std::string layer = mixtral ? "block_sparse_moe." : "mlp.";
  const int64_t hidden = mixtral ? 56 : 20;
  Tensors tensors = {{layer + "gate.weight", {4, 32}}};
  for (int e = 0; e < 4; ++e) {
    const std::string expert = format("{}experts.{}.", layer, e);
    tensors[expert + (mixtral ? "w1.weight" : "gate_proj.weight")] = {hidden, 32};
    tensors[expert + (mixtral ? "w3.weight" : "up_proj.weight")] = {hidden, 32};
    tensors[expert + (mixtral ? "w2.weight" : "down_proj.weight")] = {32, hidden};
  }
  return tensors;
}

/// Name -> shape of every Hugging Face tensor.
std::map<std::string, std::vector<int64_t>> hf_tensors(const ModelSpec& spec) {
  std::map<std::string, std::vector<int64_t>> tensors;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      int64_t rows = 0;
      for (const SubTensor& part : parameter.sub_tensors) {
        std::vector<int64_t> shape = parameter.shape;
        shape[0] = part.rows;
        rows += part.rows;
        EXPECT_TRUE(tensors.emplace(part.hf_name, shape).second) << part.hf_name;
      }
      EXPECT_EQ(rows, parameter.shape[0]) << parameter.name;
    }
  }
  return tensors;
}

TEST(ModelSpec, PresetsHaveThePublishedParameterCounts) {
  EXPECT_EQ(kPublishedParameters.size() + 2, embedded_presets().size());  // and debug, demo
  for (const auto& [name, count] : kPublishedParameters) {
    EXPECT_EQ(model_spec(preset(name)).parameter_count(), count) << name;
  }
}

/// Published: 3.3, 12.9, 2.4 (without the embedding), 37, 22, 2.7, 39 and 21 billion.
TEST(ModelSpec, OfExpertsOnlyThoseThatATokenTakesAreActiveAndCountInFlops) {
  EXPECT_EQ(model_spec(preset("qwen3-30b-a3b")).active_parameter_count(), 3353032704);
  EXPECT_EQ(model_spec(preset("mixtral-8x7b")).active_parameter_count(), 12879925248);
  EXPECT_EQ(model_spec(preset("deepseek-v2-lite")).active_parameter_count(), 2661150208);
  EXPECT_EQ(model_spec(preset("deepseek-v3")).active_parameter_count(), 37552297472);
  EXPECT_EQ(model_spec(preset("qwen3-235b-a22b")).active_parameter_count(), 22190763520);
  EXPECT_EQ(model_spec(preset("qwen1.5-moe-a2.7b")).active_parameter_count(), 2689173504);
  EXPECT_EQ(model_spec(preset("mixtral-8x22b")).active_parameter_count(), 39152031744);
  EXPECT_EQ(model_spec(preset("deepseek-v2")).active_parameter_count(), 21375800320);
  // The published 3.61 and 5.13 billion are without the embedding.
  const int64_t embedding = int64_t{201088} * 2880;
  EXPECT_EQ(model_spec(preset("gpt-oss-20b")).active_parameter_count() - embedding, 3608307264);
  EXPECT_EQ(model_spec(preset("gpt-oss-120b")).active_parameter_count() - embedding, 5132849472);
  const ModelSpec dense = model_spec(preset("qwen3-8b"));
  EXPECT_EQ(dense.active_parameter_count(), dense.parameter_count());
  ModelConfig config = tiny("qwen3_moe");
  const ModelSpec few = model_spec(config);
  config.n_experts = 40;
  const ModelSpec many = model_spec(config);
  const int64_t routers = 2 * 36 * 32;
  EXPECT_EQ(many.active_parameter_count() - few.active_parameter_count(), routers);
  EXPECT_DOUBLE_EQ(many.flops_per_token(10) - few.flops_per_token(10), 6.0 * routers);
  double block = 0.0;
  for (const BlockSpec& spec : few.blocks) block += block_cost(spec, {10, 10, DType::f32}).forward_flops / 10;
  const int64_t unmultiplied = 100 * 32 + 2 * (2 * 32 + 2 * 12) + 32;  // embedding and norms
  EXPECT_DOUBLE_EQ(block, 2.0 * (few.active_parameter_count() - unmultiplied) + 2 * 4.0 * 48 * 10);
}

TEST(ModelSpec, LayersHaveExpertsByFrequencyUnlessTheyAreNamedAsDense) {
  ModelConfig config = tiny("qwen3_moe");
  config.n_layers = 6;
  config.moe_layer_freq = 2;
  config.dense_layers = {3};
  for (int64_t layer = 0; layer < 6; ++layer)
    EXPECT_EQ(layer_traits(config, layer).experts, layer == 1 || layer == 5) << layer;
  const ModelSpec spec = model_spec(config);
  EXPECT_NE(spec.find_parameter("layers.3.mlp.gate_up"), nullptr);
  EXPECT_EQ(spec.find_parameter("layers.3.mlp.router"), nullptr);
  EXPECT_NE(spec.find_parameter("layers.5.mlp.expert_gate_up"), nullptr);
}

TEST(ModelSpec, SettingsOfExpertsThatDoNotFitAreRefusedByName) {
  const auto refusal = [](ModelConfig config, const auto& change) {
    change(config);
    return message_of<UsageError>([&] { model_spec(config); });
  };
  EXPECT_CONTAINS(refusal(tiny("llama"), [](ModelConfig& c) { c.n_experts = 8; }), "model.n_experts = 8");
  EXPECT_CONTAINS(refusal(tiny("llama"), [](ModelConfig& c) { c.dense_layers = {0}; }), "model.dense_layers");
  EXPECT_CONTAINS(refusal(tiny("mixtral"), [](ModelConfig& c) { c.moe_ffn_dim = 8; }), "model.moe_ffn_dim");
  EXPECT_CONTAINS(refusal(tiny("qwen3_moe"), [](ModelConfig& c) { c.shared_expert_dim = 8; }),
                  "model.shared_expert_dim");
  EXPECT_CONTAINS(refusal(tiny("mixtral"), [](ModelConfig& c) { c.n_experts = 0; }), "model.n_experts");
  EXPECT_CONTAINS(refusal(tiny("mixtral"), [](ModelConfig& c) { c.experts_per_token = 5; }),
                  "model.experts_per_token = 5");
  EXPECT_CONTAINS(refusal(tiny("qwen2_moe"), [](ModelConfig& c) { c.shared_expert_dim = 0; }),
                  "model.shared_expert_dim");
  EXPECT_CONTAINS(refusal(tiny("qwen3_moe"), [](ModelConfig& c) { c.dense_layers = {2}; }),
                  "model.dense_layers has 2");
}

TEST(ModelSpec, ExpertsAreWholeOnEveryTensorParallelRankAndSpreadOnlyWithSlicesOfTheTokens) {
  const ModelConfig config = tiny("qwen3_moe");
  for (const bool slices : {false, true}) {
    const ModelSpec spec = model_spec(config, 0, {0, 2, slices});
    EXPECT_TRUE(spec.find_parameter("layers.0.attention.qkv")->is_sliced());
    EXPECT_FALSE(spec.find_parameter("layers.0.mlp.expert_gate_up")->is_sliced());
  }
  EXPECT_NO_THROW(model_spec(config, 0, {0, 2, true}, {}, {}, {0, 2}));
  const std::string message = message_of<UsageError>([&] { model_spec(config, 0, {0, 2}, {}, {}, {0, 2}); });
  EXPECT_CONTAINS(message, "parallelism.expert_parallel_degree = 2", "parallelism.tensor_parallel_degree = 2",
                  "set parallelism.enable_sequence_parallel = true");
}

std::vector<std::string> units_of_layer(const ModelSpec& spec, const std::string& layer, UnitMesh mesh) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : spec.units)
    if (unit.name.starts_with(layer) && unit.mesh == mesh) names.push_back(unit.name);
  return names;
}

TEST(ModelSpec, WhatTakesSlicesOfTheTokensInPlaceOfAnMlpIsAUnitOfItsOwn) {
  for (const std::string& family : family_names()) {
    if (!has_experts(family)) continue;
    ModelConfig config = tiny(family);
    const TensorPlan plan =
        needs_whole_attention(family) ? TensorPlan({{"attention", TensorStyle::replicate}}) : TensorPlan();
    const ModelSpec whole = model_spec(config, 0, {0, 2}, {}, plan);
    EXPECT_TRUE(units_of_layer(whole, "layers.", UnitMesh::slices).empty()) << family;
    const ModelSpec spec = model_spec(config, 0, {0, 2, true}, {}, plan);
    EXPECT_EQ(units_of_layer(spec, "layers.1", UnitMesh::slices), (std::vector<std::string>{"layers.1.mlp"}));
    for (const UnitSpec& unit : spec.units)
      for (const ParameterSpec& parameter : unit.parameters)
        EXPECT_EQ(unit.mesh == UnitMesh::slices,
                  parameter.name.starts_with(unit.name + ".") && unit.name.ends_with(".mlp"))
            << parameter.name;
    const ModelSpec spread = model_spec(config, 0, {0, 2, true}, {}, plan, {0, 2});
    EXPECT_EQ(units_of_layer(spread, "layers.1", UnitMesh::slices),
              (std::vector<std::string>{"layers.1.mlp"}));
    EXPECT_EQ(units_of_layer(spread, "layers.1", UnitMesh::experts),
              (std::vector<std::string>{"layers.1.experts"}));
  }
}

TEST(ModelSpec, ExpertsAreBalancedWithinWholeRowsOnly) {
  ModelConfig config = tiny("mixtral");
  const ContextParallel context{2, ContextMethod::allgather};
  config.router_z_loss_weight = 0.1;
  EXPECT_NO_THROW(model_spec(config, 0, {}, context));
  config.router_aux_loss_weight = 0.1;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config, 0, {}, context); }),
                  "router_aux_loss_weight = 0.1");
  ModelConfig dense = tiny("llama");
  dense.router_z_loss_weight = 0.1;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(dense); }), "have no routers");
}

TEST(ModelSpec, TheFirstLayersMayHaveAnMlpInsteadOfExperts) {
  ModelConfig config = tiny("deepseek_v3");
  config.first_dense_layers = 1;
  EXPECT_FALSE(layer_traits(config, 0).experts);
  EXPECT_FALSE(layer_traits(config, 0).corrected());
  EXPECT_TRUE(layer_traits(config, 1).experts);
  const ModelSpec spec = model_spec(config);
  EXPECT_EQ(spec.find_parameter("layers.0.mlp.correction"), nullptr);
  EXPECT_NE(spec.find_parameter("layers.0.mlp.gate_up"), nullptr);
  EXPECT_NE(spec.find_parameter("layers.1.mlp.correction"), nullptr);
}

/// The state comes after all weights, and is in the block that uses it.
TEST(ModelSpec, TheCorrectionOfARouterIsStateThatNoGradientChanges) {
  const ModelSpec spec = model_spec(tiny("deepseek_v3"));
  ASSERT_EQ(spec.units.size(), 6U);
  for (const size_t layer : {0, 1}) {
    const UnitSpec& unit = spec.units.at(4 + layer);
    EXPECT_EQ(unit.name, format("layers.{}.router", layer));
    EXPECT_TRUE(unit.state);
    EXPECT_FALSE(unit.trainable);
    EXPECT_EQ(spec.blocks.at(1 + layer).units,
              (std::vector<int>{static_cast<int>(1 + layer), static_cast<int>(4 + layer)}));
  }
  for (const char* family : {"deepseek_v2", "qwen3_moe"})
    for (const UnitSpec& unit : model_spec(tiny(family)).units) EXPECT_FALSE(unit.state) << family;
}

TEST(ModelSpec, SizesOfLatentsAndGroupsThatDoNotFitAreRefusedByName) {
  const auto refusal = [](const auto& change) {
    ModelConfig config = tiny("deepseek_v3");
    change(config);
    return message_of<UsageError>([&] { model_spec(config); });
  };
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.kv_lora_rank = 0; }), "model.kv_lora_rank");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.v_head_dim = 0; }), "model.v_head_dim");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.qk_rope_head_dim = 3; }), "model.qk_rope_head_dim = 3");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.n_kv_heads = 2; }), "model.n_kv_heads = 2");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.head_dim = 12; }), "model.head_dim = 12");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.n_shared_experts = 0; }), "model.n_shared_experts");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.n_expert_groups = 3; }), "divide model.n_experts = 4");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.groups_per_token = 2; }), "fewer groups");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.n_expert_groups = 4, c.groups_per_token = 2; }),
                  "two experts");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.n_expert_groups = 2, c.experts_per_token = 3; }),
                  "model.experts_per_token = 3");
  ModelConfig dense = tiny("llama");
  dense.kv_lora_rank = 8;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(dense); }), "model.kv_lora_rank = 8");
}

TEST(ModelSpec, LatentAttentionIsWholeOnEveryRank) {
  const ModelConfig config = tiny("deepseek_v3");
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config, 0, {0, 2}); }), "has latents");
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config, 0, {}, {2, ContextMethod::allgather}); }),
                  "context_parallel_degree = 2");
  const TensorPlan plan({{"attention", TensorStyle::replicate}});
  const ModelSpec spec = model_spec(config, 0, {0, 2}, {}, plan);
  EXPECT_FALSE(spec.find_parameter("layers.0.attention.kv_up")->is_sliced());
  EXPECT_TRUE(spec.find_parameter("embedding.weight")->is_sliced());
}

/// mscale of DeepSeek: (0.1 mscale_all_dim ln factor + 1)^2.
TEST(LayerTraits, ScoresOfLatentAttentionGrowWithYarn) {
  ModelConfig config = tiny("deepseek_v3");
  const double plain = layer_traits(config, 0).query_scale;
  EXPECT_EQ(plain, 1.0 / std::sqrt(10.0));
  config.rope_scaling.type = RopeScalingType::yarn;
  config.rope_scaling.factor = 40.0;
  config.rope_scaling.mscale_all_dim = 0.707;
  const double growth = 0.1 * 0.707 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(layer_traits(config, 0).query_scale, plain * growth * growth);
  config.family = "qwen3_moe";
  EXPECT_EQ(layer_traits(config, 0).query_scale, 1.0 / std::sqrt(8.0));
}

TEST(ModelSpec, HasTheHuggingFaceTensorsOfItsFamily) {
  const Tensors norms = {{"input_layernorm.weight", {32}}, {"post_attention_layernorm.weight", {32}}};
  const Tensors attention = {{"self_attn.q_proj.weight", {48, 32}},
                             {"self_attn.k_proj.weight", {24, 32}},
                             {"self_attn.v_proj.weight", {24, 32}},
                             {"self_attn.o_proj.weight", {32, 48}}};
  const Tensors latents = {
      {"self_attn.kv_a_proj_with_mqa.weight", {18, 32}}, {"self_attn.kv_a_layernorm.weight", {14}},
      {"self_attn.kv_b_proj.weight", {52, 14}},          {"self_attn.o_proj.weight", {32, 28}},
      {"mlp.shared_experts.gate_proj.weight", {40, 32}}, {"mlp.shared_experts.up_proj.weight", {40, 32}},
      {"mlp.shared_experts.down_proj.weight", {32, 40}}};
  const Tensors mlp = {{"mlp.gate_proj.weight", {56, 32}},
                       {"mlp.up_proj.weight", {56, 32}},
                       {"mlp.down_proj.weight", {32, 56}}};
  const Tensors norms_of_heads = {{"self_attn.q_norm.weight", {12}}, {"self_attn.k_norm.weight", {12}}};
  const Tensors norms_around = {{"pre_feedforward_layernorm.weight", {32}},
                                {"post_feedforward_layernorm.weight", {32}}};
  std::map<std::string, Tensors> further = {
      {"llama", {}},
      {"mistral", {}},
      {"qwen2",
       {{"self_attn.q_proj.bias", {48}}, {"self_attn.k_proj.bias", {24}}, {"self_attn.v_proj.bias", {24}}}},
      {"qwen3", norms_of_heads},
      {"olmo2",
       {{"self_attn.q_norm.weight", {48}},
        {"self_attn.k_norm.weight", {24}},
        {"post_feedforward_layernorm.weight", {32}}}},
      {"gemma2", norms_around},
      {"gemma3", norms_around},
      {"qwen3_moe", norms_of_heads},
      {"qwen2_moe",
       {{"mlp.shared_expert.gate_proj.weight", {28, 32}},
        {"mlp.shared_expert.up_proj.weight", {28, 32}},
        {"mlp.shared_expert.down_proj.weight", {32, 28}},
        {"mlp.shared_expert_gate.weight", {1, 32}}}},
      {"mixtral", {}},
      {"deepseek_v2", {{"self_attn.q_proj.weight", {40, 32}}}},
      {"deepseek_v3",
       {{"self_attn.q_a_proj.weight", {18, 32}},
        {"self_attn.q_a_layernorm.weight", {18}},
        {"self_attn.q_b_proj.weight", {40, 18}},
        {"mlp.gate.e_score_correction_bias", {4}}}},
      {"gpt_oss", {{"self_attn.o_proj.bias", {32}}, {"self_attn.sinks", {4}}}}};
  for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias"})
    further["gpt_oss"][format("self_attn.{}", name)] = further["qwen2"].at(format("self_attn.{}", name));
  further["qwen2_moe"].insert(further["qwen2"].begin(), further["qwen2"].end());
  further["gemma3"].insert(norms_of_heads.begin(), norms_of_heads.end());
  for (const ModelFamily& row : model_families()) {
    const std::string family(row.name);
    Tensors expected = {
        {"model.embed_tokens.weight", {100, 32}}, {"model.norm.weight", {32}}, {"lm_head.weight", {100, 32}}};
    for (const int index : {0, 1}) {
      for (const Tensors& tensors : {norms, row.traits.latent() ? latents : attention, further.at(family),
                                     row.expert_names == nullptr ? mlp : expert_tensors(family)})
        for (const auto& [name, shape] : tensors) expected[format("model.layers.{}.{}", index, name)] = shape;
      if (family == "olmo2") expected.erase(format("model.layers.{}.input_layernorm.weight", index));
    }
    EXPECT_EQ(hf_tensors(model_spec(tiny(family))), expected) << family;
  }
}

TEST(ModelSpec, NormsAndBiasesStartWithoutEffect) {
  for (const ModelFamily& family : model_families()) {
    const ModelSpec spec = model_spec(tiny(std::string(family.name)));
    const bool gemma = family.traits.norm_offset == 1.0;
    for (const UnitSpec& unit : spec.units)
      for (const ParameterSpec& parameter : unit.parameters) {
        if (parameter.decays()) continue;
        const bool zero = gemma || parameter.tag == ParameterTag::bias;
        for (const SubTensor& part : parameter.sub_tensors)
          EXPECT_EQ(part.init.kind, zero ? Initializer::Kind::zeros : Initializer::Kind::ones)
              << part.hf_name;
      }
  }
}

TEST(ModelSpec, ASettingThatTheFamilyDoesNotHaveIsRefused) {
  ModelConfig config = tiny("llama");
  config.attention_softcap = 50.0;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config); }), "model.attention_softcap = 50");
  config = tiny("mistral");
  config.sliding_window = 5;
  EXPECT_NO_THROW(model_spec(config));
  config.layer_types = {AttentionKind::full_attention, AttentionKind::sliding_attention};
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config); }), "model.layer_types");
  config = tiny("gemma3");
  config.sliding_window = 5;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config); }), "rope_local_theta");
}

TEST(LayerTraits, LayerTypesAreRepeated) {
  ModelConfig config = tiny("gemma2");
  config.sliding_window = 9;
  config.layer_types = {AttentionKind::sliding_attention, AttentionKind::full_attention};
  for (const int64_t layer : {0, 1, 2, 3, 4})
    EXPECT_EQ(layer_traits(config, layer).window, layer % 2 == 0 ? 9 : 0) << layer;
  config.layer_types = {};
  EXPECT_EQ(layer_traits(config, 1).window, 9);
}

TEST(LayerTraits, ScoresAreDividedByTheRootOfTheHeadSizeOrOfAnotherNumber) {
  ModelConfig config = tiny("gemma2");
  EXPECT_EQ(layer_traits(config, 0).query_scale, 1.0 / std::sqrt(12.0));
  config.query_pre_attn_scalar = 16;
  EXPECT_EQ(layer_traits(config, 0).query_scale, 0.25);
}

TEST(ModelSpec, AWindowLimitsTheKeysWhoseFlopsCount) {
  ModelConfig config = tiny("mistral");
  const auto flops = [&](int64_t length) {
    return block_cost(model_spec(config).blocks.at(1), {10, length, DType::f32}).forward_flops;
  };
  const double whole = flops(10);
  config.sliding_window = 4;
  EXPECT_DOUBLE_EQ(flops(10), whole - 10 * 4.0 * 48 * 6);
  EXPECT_DOUBLE_EQ(flops(3), whole - 10 * 4.0 * 48 * 7);
}

TEST(ModelSpec, ATiedHeadUsesTheUnitOfTheEmbedding) {
  const ModelSpec tied = model_spec(tiny("llama", true));
  const ModelSpec untied = model_spec(tiny("llama", false));
  EXPECT_EQ(tied.parameter_count(), untied.parameter_count() - 100 * 32);
  EXPECT_EQ(hf_tensors(tied).count("lm_head.weight"), 0U);
  EXPECT_EQ(tied.blocks.back().units, (std::vector<int>{3, 0}));
  ASSERT_EQ(tied.ties.size(), 1U);
  EXPECT_EQ(tied.ties[0].hf_alias, "lm_head.weight");
  EXPECT_TRUE(untied.ties.empty());
}

TEST(ModelSpec, BlocksAndUnitsAreInForwardOrder) {
  const ModelSpec spec = model_spec(tiny("qwen3"));
  std::vector<std::string> names;
  for (const BlockSpec& block : spec.blocks) names.push_back(block.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "layers.0", "layers.1", "head"}));
  for (size_t b = 1; b < spec.blocks.size(); ++b) {
    EXPECT_EQ(spec.blocks[b].inputs.at(0).name, spec.blocks[b - 1].outputs.at(0).name);
  }
  EXPECT_EQ(region_names(spec.blocks[1]), (std::vector<std::string>{"attention", "mlp"}));
}

TEST(ModelSpec, ForwardFlopsAreTwoPerMatrixElementAndFourPerKeyAndChannel) {
  const ModelConfig config = tiny("llama");
  const ModelSpec spec = model_spec(config);
  double flops = 0;
  for (const BlockSpec& block : spec.blocks) flops += block_cost(block, {10, 10, DType::f32}).forward_flops;
  const double matrices = 2 * (96 * 32 + 48 * 32 + 3 * 56 * 32) + 100 * 32;
  EXPECT_DOUBLE_EQ(flops, 10 * (2 * matrices + 2 * 4.0 * 48 * 10));
}

TEST(ModelSpec, AnUnknownVocabularySizeIsRefused) {
  ModelConfig config = tiny("llama");
  config.vocab_size = 0;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config); }), "vocab_size");
}

TEST(ModelSpec, SizesWhoseProductsOverflowAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (int64_t ModelConfig::* size :
       {&ModelConfig::dim, &ModelConfig::n_layers, &ModelConfig::n_heads, &ModelConfig::n_kv_heads,
        &ModelConfig::head_dim, &ModelConfig::ffn_dim, &ModelConfig::vocab_size}) {
    ModelConfig config = tiny("llama");
    config.*size = kHuge;
    EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config); }), "parameters are supported");
  }
  ModelConfig config = tiny("llama");
  config.n_heads = 0;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(config); }), "sizes must be positive");
}

TEST(Families, AnUnknownFamilyIsRefusedWithTheListOfFamilies) {
  EXPECT_CONTAINS(message_of<UsageError>([] { find_family("gpt2"); }), "\"gpt2\"", "is a plug-in missing?",
                  "llama, qwen2, qwen3");
}

}  // namespace
}  // namespace stepforge::testing
