#include "stepforge/catalog/hf_config.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "stepforge/config/presets.h"
#include "tests/support/throws.h"

namespace stepforge {
namespace {

using testing::contains;
using testing::message_of;

ModelConfig preset(std::string_view name) {
  const std::vector<std::string> words = {"preset=" + std::string(name), "model.vocab_size=4096"};
  return load_config({}, words).config.model;
}

Json llama_json() {
  return hf_config(preset("llama3.1-8b"), DType::bf16, 1, 2);
}

/// The message with which config.json is refused once `key` is `value`.
std::string refusal(const std::string& key, const Json& value) {
  Json json = llama_json();
  json[key] = value;
  return message_of<FormatError>([&] { model_from_hf_config(json, "dir/config.json"); });
}

TEST(HfConfig, EveryPresetComesBackAsItWas) {
  for (const EmbeddedPreset& embedded : embedded_presets()) {
    ModelConfig model = preset(embedded.name);
    // What is written is the head size itself.
    if (model.head_dim == 0) model.head_dim = model.dim / model.n_heads;
    EXPECT_EQ(model_from_hf_config(hf_config(model, DType::f32, 1, 2), "config.json"), model)
        << embedded.name;
  }
}

TEST(HfConfig, WritesWhatTransformersReads) {
  const Json json = llama_json();
  EXPECT_EQ(json["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_EQ(json["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(json["bos_token_id"], 1);
  EXPECT_EQ(hf_config(preset("qwen3-0.6b"), DType::f32, -1, 2)["bos_token_id"], nullptr);
  EXPECT_EQ(hf_config(preset("llama3-8b"), DType::f32, -1, 2)["rope_scaling"], nullptr);
  EXPECT_EQ(hf_generation_config(-1, 7)["eos_token_id"], 7);
}

TEST(HfConfig, RopeParametersOfNewerFilesMeanTheSame) {
  Json json = llama_json();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = json["rope_theta"];
  json.erase("rope_scaling");
  json.erase("rope_theta");
  EXPECT_EQ(model_from_hf_config(json, "config.json"), model_from_hf_config(llama_json(), "config.json"));
}

TEST(HfConfig, HeadSizeLeftOutIsTheWidthsShareForLlamaAnd128ForQwen3) {
  Json llama = llama_json();
  llama.erase("head_dim");
  EXPECT_EQ(model_from_hf_config(llama, "config.json").head_dim, 128);
  llama["num_attention_heads"] = 64;
  EXPECT_EQ(model_from_hf_config(llama, "config.json").head_dim, 64);
  Json qwen = hf_config(preset("qwen3-0.6b"), DType::f32, 1, 2);
  qwen.erase("head_dim");
  EXPECT_EQ(model_from_hf_config(qwen, "config.json").head_dim, 128);
}

TEST(HfConfig, KeyValueHeadsLeftOutAreAsManyAsHeads) {
  Json json = llama_json();
  json.erase("num_key_value_heads");
  EXPECT_EQ(model_from_hf_config(json, "config.json").n_kv_heads, 32);
}

TEST(HfConfig, AnUnknownModelTypeIsRefusedWithTheListOfThoseThereAre) {
  const std::string message = refusal("model_type", "gpt2");
  EXPECT_TRUE(contains(message, "dir/config.json"));
  EXPECT_TRUE(contains(message, "gpt2"));
  EXPECT_TRUE(contains(message, "llama, qwen3"));
}

TEST(HfConfig, WhatChangesTheMathematicsIsRefused) {
  EXPECT_TRUE(contains(refusal("attention_bias", true), "attention_bias"));
  EXPECT_TRUE(contains(refusal("mlp_bias", true), "mlp_bias"));
  EXPECT_TRUE(contains(refusal("use_sliding_window", true), "use_sliding_window"));
  EXPECT_TRUE(contains(refusal("hidden_act", "gelu"), "silu"));
  EXPECT_TRUE(contains(refusal("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}), "rope_type"));
}

TEST(HfConfig, WrongTypesAndSizesAreRefusedByName) {
  EXPECT_TRUE(contains(refusal("hidden_size", "4096"), "hidden_size"));
  EXPECT_TRUE(contains(refusal("hidden_size", -1), "positive integer"));
  EXPECT_TRUE(contains(refusal("num_hidden_layers", 2.5), "num_hidden_layers"));
  EXPECT_TRUE(contains(refusal("rms_norm_eps", "small"), "a number"));
  EXPECT_TRUE(contains(refusal("tie_word_embeddings", 1), "true or false"));
  EXPECT_TRUE(contains(refusal("num_key_value_heads", 5), "num_attention_heads = 32"));
  EXPECT_TRUE(contains(refusal("head_dim", 7), "even"));
  EXPECT_TRUE(contains(refusal("rope_scaling", 7), "object"));
}

TEST(HfConfig, AMissingSizeIsNamed) {
  Json json = llama_json();
  json.erase("vocab_size");
  const std::string message = message_of<FormatError>([&] { model_from_hf_config(json, "dir/config.json"); });
  EXPECT_TRUE(contains(message, "\"vocab_size\" is missing"));
  EXPECT_TRUE(
      contains(message_of<FormatError>([] { model_from_hf_config(Json::array(), "x"); }), "JSON object"));
}

}  // namespace
}  // namespace stepforge
