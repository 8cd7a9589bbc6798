// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/peft_config.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/adapter_ranks.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/small_adapter.h"
#include "tests/catalog/small_model.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelSpec adapted(const AdapterConfig& adapter) {
  ModelSpec model = model_spec(small_model("llama", 8, 4), 64);
  add_adapters(model, adapter, {DType::f32});
  return model;
}

Json written(const AdapterConfig& adapter) {
  return peft_config(adapter, adapted(adapter), "base");
}

TEST(PeftConfig, NamesModulesByTheirLastPartWhereThatNamesNoOthers) {
  EXPECT_EQ(written(small_lora({"q_proj", "down_proj"}))["target_modules"], Json({"down_proj", "q_proj"}));
  EXPECT_EQ(written(small_lora({"model.layers.0.mlp.up_proj"}))["target_modules"],
            Json({"model.layers.0.mlp.up_proj"}));
}

TEST(PeftConfig, NamesEmbeddingAndHeadAsOtherModules) {
  EXPECT_EQ(written(small_lora({"q_proj", "embed_tokens", "lm_head"}))["target_modules"],
            Json({"embed_tokens", "lm_head", "q_proj"}));
}

TEST(PeftConfig, WhatIsWrittenIsReadAsTheSameAdapters) {
  AdapterConfig adapter = small_lora({"q_proj", "v_proj", "model.layers.1.mlp.up_proj"});
  adapter.patterns = {{.pattern = "v_proj", .rank = 2}, {.pattern = ".*up_proj", .alpha = 3}};
  adapter.rslora = true;
  adapter.dropout = 0.25;
  adapter.also_train = {"model.norm"};
  const AdapterConfig read = read_peft_config(written(adapter), "config");
  EXPECT_EQ(read.dropout, 0.25);
  EXPECT_EQ(read.also_train, Strings{".*model.norm"}) << "as PEFT reads it";
  const ModelSpec left = adapted(adapter);
  const ModelSpec right = adapted(read);
  ASSERT_EQ(left.units.size(), right.units.size());
  for (size_t u = 0; u < left.units.size(); ++u) {
    ASSERT_EQ(left.units[u].parameters.size(), right.units[u].parameters.size()) << left.units[u].name;
    for (size_t i = 0; i < left.units[u].parameters.size(); ++i) {
      EXPECT_EQ(left.units[u].parameters[i].name, right.units[u].parameters[i].name);
      EXPECT_EQ(left.units[u].parameters[i].shape, right.units[u].parameters[i].shape);
    }
  }
  AdapterRanks before(adapter);
  AdapterRanks after(read);
  for (const char* module :
       {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "model.layers.1.mlp.up_proj"})
    EXPECT_DOUBLE_EQ(before.scale(module), after.scale(module)) << module;
}

TEST(PeftConfig, OfTwiceTheRanksHasTheSameScales) {
  for (const bool rslora : {false, true}) {
    AdapterConfig adapter = small_lora({"q_proj", "v_proj", "up_proj"});
    adapter.rslora = rslora;
    adapter.patterns = {{.pattern = "v_proj", .rank = 2}, {.pattern = ".*up_proj", .alpha = 3}};
    const AdapterConfig doubled = with_doubled_ranks(adapter);
    AdapterRanks before(adapter);
    AdapterRanks after(doubled);
    for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                               "model.layers.1.mlp.up_proj"}) {
      EXPECT_EQ(after.rank(module), 2 * before.rank(module)) << module;
      EXPECT_DOUBLE_EQ(after.scale(module), before.scale(module)) << module;
    }
  }
}

TEST(PeftConfig, OfAnAdapterOfChangedWeightsIsRefused) {
  Json json = written(small_lora({"q_proj"}));
  for (const char* init : {"pissa", "pissa_niter_16", "OLoRA", "corda", "lora_ga"}) {
    json["init_lora_weights"] = init;
    EXPECT_CONTAINS(message_of<FormatError>([&] { read_peft_config(json, "config"); }), "init_lora_weights",
                    "path_initial_model_for_weight_conversion");
  }
  json["init_lora_weights"] = "loftq";
  EXPECT_CONTAINS(message_of<FormatError>([&] { read_peft_config(json, "config"); }), "merge it with peft");
  for (const Json& init : {Json(true), Json("gaussian"), Json("eva"), Json()}) {
    json["init_lora_weights"] = init;
    EXPECT_EQ(read_peft_config(json, "config").rank, small_lora({"q_proj"}).rank) << init;
  }
}

TEST(PeftConfig, OfARewardModelTheScoreIsTrainedAndSavedToo) {
  ModelConfig model = small_model("llama", 8, 4);
  model.head = HeadKind::score;
  ModelSpec spec = model_spec(model);
  const AdapterConfig adapter = small_lora({"q_proj"});
  add_adapters(spec, adapter, {DType::f32});
  for (const UnitSpec& unit : spec.units)
    for (const ParameterSpec& parameter : unit.parameters)
      EXPECT_EQ(unit.trainable,
                parameter.tag == ParameterTag::score || parameter.name.find("lora_") != std::string::npos)
          << parameter.name;
  const Json json = peft_config(adapter, spec, "base");
  EXPECT_EQ(json["task_type"], "SEQ_CLS");
  EXPECT_EQ(json["modules_to_save"], Json::array({"score"}));
  EXPECT_EQ(read_peft_config(json, "config").also_train, Strings{});
  Json of_a_text = json;
  of_a_text["task_type"] = "CAUSAL_LM";
  EXPECT_EQ(read_peft_config(of_a_text, "config").also_train, Strings{".*score"});
}

/// As PEFT writes it, with one field changed.
Json of_peft(const std::string& key, const Json& value) {
  Json json = {{"peft_type", "LORA"},
               {"r", 8},
               {"lora_alpha", 16},
               {"target_modules", {"q_proj"}},
               {"bias", "none"},
               {"use_dora", false},
               {"exclude_modules", nullptr},
               {"megatron_core", "megatron.core"},
               {"loftq_config", Json::object()}};
  json[key] = value;
  return json;
}

TEST(PeftConfig, PatternsAreThoseOfTheLastPartsOfNames) {
  Json json = of_peft("rank_pattern", {{"layers.1.self_attn.q_proj", 2}});
  json["alpha_pattern"] = {{"^model.layers.0.self_attn.q_proj", 4}};
  const AdapterConfig adapter = read_peft_config(json, "config");
  AdapterRanks ranks(adapter);
  EXPECT_EQ(ranks.rank("model.layers.1.self_attn.q_proj"), 2);
  EXPECT_EQ(ranks.rank("model.layers.11.self_attn.q_proj"), 8);
  EXPECT_EQ(ranks.alpha("model.layers.0.self_attn.q_proj"), 4);
  EXPECT_EQ(ranks.alpha("model.layers.1.self_attn.q_proj"), 16);
}

TEST(PeftConfig, RefusesWhatItCannotCompute) {
  const auto refusal = [](const std::string& key, const Json& value) {
    return message_of<FormatError>([&] { read_peft_config(of_peft(key, value), "adapter_config.json"); });
  };
  EXPECT_CONTAINS(refusal("peft_type", "LOHA"), "peft_type");
  EXPECT_CONTAINS(refusal("bias", "boft_only"), "bias", "lora_only");
  EXPECT_CONTAINS(refusal("trainable_token_indices", {1, 2}), "trainable_token_indices");
  EXPECT_CONTAINS(refusal("exclude_modules", {"k_proj"}), "exclude_modules");
  EXPECT_CONTAINS(refusal("use_new_method", true), "use_new_method");
  EXPECT_CONTAINS(refusal("r", 0), "adapter_config.json");
  Json tied = of_peft("ensure_weight_tying", true);
  EXPECT_NO_THROW(read_peft_config(tied, "config")) << "no module is tied";
  tied["target_modules"] = {"embed_tokens", "lm_head"};
  EXPECT_CONTAINS(message_of<FormatError>([&] { read_peft_config(tied, "config"); }), "ensure_weight_tying");
  EXPECT_NO_THROW(read_peft_config(of_peft("inference_mode", true), "config"));
}

}  // namespace
}  // namespace stepforge::testing
