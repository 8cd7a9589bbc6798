// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_config.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/config/load.h"
#include "stepforge/config/presets.h"
#include "tests/support/paths.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelConfig small_preset(std::string_view name) {
  const std::vector<std::string> overrides = {"preset=" + std::string(name), "model.vocab_size=4096"};
  return load_config({}, overrides).config.model;
}

Json token_ids(const Json& bos, const Json& eos) {
  return {{"bos_token_id", bos}, {"eos_token_id", eos}};
}

/// Recorded from transformers by tools/oracle/make_hf_config_golden.py.
Json golden(const std::string& name) {
  return read_json_file(source_dir() / "tests/golden/hf_config" / name);
}

Json llama_json() {
  return hf_config(small_preset("llama3.1-8b"), DType::bf16, token_ids(1, 2));
}

/// The error for a config.json in which `key` is `value`.
std::string refusal(const std::string& key, const Json& value) {
  Json json = llama_json();
  json[key] = value;
  return message_of<FormatError>([&] { model_from_hf_config(json, "dir/config.json"); });
}

TEST(HfConfig, EveryPresetSurvivesARoundTrip) {
  for (const EmbeddedPreset& embedded : embedded_presets()) {
    ModelConfig model = small_preset(embedded.name);
    // config.json holds the head size itself.
    if (model.head_dim == 0) model.head_dim = model.dim / model.n_heads;
    EXPECT_EQ(model_from_hf_config(hf_config(model, DType::f32, Json::object()), "config.json"), model)
        << embedded.name;
  }
}

TEST(HfConfig, WritesTheKeysOfTransformers) {
  const Json json = llama_json();
  EXPECT_EQ(json["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_EQ(json["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(json["bos_token_id"], 1);
  EXPECT_EQ(hf_config(small_preset("qwen3-0.6b"), DType::f32, token_ids(nullptr, 2))["bos_token_id"],
            nullptr);
  EXPECT_EQ(hf_config(small_preset("llama3-8b"), DType::f32, Json::object())["rope_scaling"], nullptr);
}

TEST(HfConfig, ReadsRopeParametersOfNewerFiles) {
  Json json = llama_json();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = json["rope_theta"];
  json.erase("rope_scaling");
  json.erase("rope_theta");
  EXPECT_EQ(model_from_hf_config(json, "config.json"), model_from_hf_config(llama_json(), "config.json"));
}

TEST(HfConfig, AMissingHeadSizeHasTheDefaultOfItsFamily) {
  Json llama = llama_json();
  llama.erase("head_dim");
  EXPECT_EQ(model_from_hf_config(llama, "config.json").head_dim, 128);
  llama["num_attention_heads"] = 64;
  EXPECT_EQ(model_from_hf_config(llama, "config.json").head_dim, 64);
  Json qwen = hf_config(small_preset("qwen3-0.6b"), DType::f32, Json::object());
  qwen.erase("head_dim");
  EXPECT_EQ(model_from_hf_config(qwen, "config.json").head_dim, 128);
}

TEST(HfConfig, MissingKeyValueHeadsDefaultToTheHeads) {
  Json json = llama_json();
  json.erase("num_key_value_heads");
  EXPECT_EQ(model_from_hf_config(json, "config.json").n_kv_heads, 32);
}

TEST(HfConfig, AnUnknownModelTypeIsRefusedWithTheListOfModelTypes) {
  const std::string message = refusal("model_type", "gpt2");
  EXPECT_CONTAINS(message, "dir/config.json");
  EXPECT_CONTAINS(message, "gpt2");
  EXPECT_CONTAINS(message, "llama, qwen3");
}

TEST(HfConfig, UnsupportedComputationIsRefused) {
  EXPECT_CONTAINS(refusal("attention_bias", true), "attention_bias");
  EXPECT_CONTAINS(refusal("mlp_bias", true), "mlp_bias");
  EXPECT_CONTAINS(refusal("use_sliding_window", true), "use_sliding_window");
  EXPECT_CONTAINS(refusal("hidden_act", "gelu"), "silu");
  EXPECT_CONTAINS(refusal("is_causal", false), "\"is_causal\" is false: only true is supported");
}

TEST(HfConfig, WrongTypesAndSizesAreRefusedByName) {
  EXPECT_CONTAINS(refusal("hidden_size", "4096"), "hidden_size");
  EXPECT_CONTAINS(refusal("hidden_size", -1), "\"hidden_size\" is -1");
  EXPECT_CONTAINS(refusal("num_hidden_layers", 2.5), "num_hidden_layers");
  EXPECT_CONTAINS(refusal("rms_norm_eps", "small"), "a number");
  EXPECT_CONTAINS(refusal("tie_word_embeddings", 1), "true or false");
  EXPECT_CONTAINS(refusal("num_key_value_heads", 5), "num_attention_heads = 32");
  EXPECT_CONTAINS(refusal("head_dim", 7), "even");
  EXPECT_CONTAINS(refusal("rope_scaling", 7), "object");
}

/// A value other than `value`, of its type.
Json changed(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>() * 2 + 2;
  if (value.is_number()) return value.get<double>() + 0.25;
  if (value.is_string()) return value.get<std::string>() + "-other";
  return Json::array({"other"});
}

TEST(HfConfig, EveryFieldOfTransformersIsReadRefusedOrIgnored) {
  const std::set<std::string> ignored = {
      "_name_or_path",  "architectures",        "bos_token_id",      "chunk_size_feed_forward",
      "dtype",          "eos_token_id",         "id2label",          "initializer_range",
      "label2id",       "max_window_layers",    "output_attentions", "output_hidden_states",
      "pad_token_id",   "pretraining_tp",       "problem_type",      "return_dict",
      "sliding_window", "transformers_version", "use_cache"};
  const std::set<std::string> refused = {"attention_bias",     "attention_dropout",   "hidden_act",
                                         "head_dim",           "is_encoder_decoder",  "layer_types",
                                         "mlp_bias",           "model_type",          "rope_parameters",
                                         "use_sliding_window", "num_attention_heads", "num_key_value_heads"};
  const Json fields = golden("fields.json");
  for (const char* family : {"llama", "qwen3"}) {
    const Json& defaults = fields.at(family);
    const ModelConfig model = model_from_hf_config(defaults, "config.json");
    for (const auto& [key, value] : defaults.items()) {
      SCOPED_TRACE(std::string(family) + ": " + key);
      Json json = defaults;
      json[key] = changed(value);
      if (key == "head_dim") json[key] = 7;
      if (key == "num_attention_heads") json[key] = 3;
      if (refused.contains(key)) {
        const std::string message =
            message_of<FormatError>([&] { model_from_hf_config(json, "dir/config.json"); });
        EXPECT_CONTAINS(message, "dir/config.json: \"") << message;
        EXPECT_CONTAINS(message, key == "num_attention_heads" ? "num_key_value_heads" : key) << message;
      } else {
        EXPECT_EQ(model_from_hf_config(json, "config.json") == model, ignored.contains(key));
      }
    }
  }
}

TEST(HfConfig, GenerationSettingsOfOlderFilesAreIgnored) {
  Json json = llama_json();
  const Json fields = golden("fields.json");
  for (const Json& key : fields.at("generation")) json[key.get<std::string>()] = 0.5;
  EXPECT_EQ(model_from_hf_config(json, "config.json"), model_from_hf_config(llama_json(), "config.json"));
}

TEST(HfConfig, AnUnknownFieldIsRefusedUnlessItIsNull) {
  EXPECT_CONTAINS(refusal("logit_softcap", 30.0),
                  "dir/config.json: \"logit_softcap\" is 30.0: unknown setting");
  for (const char* key : {"transformers_weights", "auto_map", "quantization_config"}) {
    EXPECT_CONTAINS(refusal(key, "some.file"), key);
  }
  Json json = llama_json();
  json["logit_softcap"] = nullptr;
  EXPECT_EQ(model_from_hf_config(json, "config.json"), model_from_hf_config(llama_json(), "config.json"));
}

TEST(HfConfig, RotarySettingsAreReadLikeTransformersOrRefused) {
  for (const Json& entry : golden("rope.json")) {
    SCOPED_TRACE(entry["config"]["model_type"].get<std::string>() + ": " + entry["name"].get<std::string>());
    const Json& expected = entry["rope"];
    if (!entry["refused"].is_null()) {
      const std::string message =
          message_of<FormatError>([&] { model_from_hf_config(entry["config"], "config.json"); });
      EXPECT_CONTAINS(message, entry["refused"].get<std::string>() + "\"") << message;
      continue;
    }
    const ModelConfig model = model_from_hf_config(entry["config"], "config.json");
    EXPECT_EQ(model.rope_theta, expected["rope_theta"].get<double>());
    if (expected["rope_type"] == "default") {
      EXPECT_EQ(model.rope_scaling, RopeScalingConfig());
      continue;
    }
    RopeScalingConfig scaling;
    scaling.type = RopeScalingType::llama3;
    scaling.factor = expected["factor"];
    scaling.low_freq_factor = expected["low_freq_factor"];
    scaling.high_freq_factor = expected["high_freq_factor"];
    scaling.original_max_position = expected["original_max_position_embeddings"];
    EXPECT_EQ(model.rope_scaling, scaling);
  }
}

TEST(HfConfig, ValuesOutsideTheRangesOfOurFieldsAreRefused) {
  EXPECT_CONTAINS(refusal("rms_norm_eps", 2.0), "\"rms_norm_eps\" is 2.0: must be 0 to 1");
  EXPECT_CONTAINS(refusal("rms_norm_eps", -1e-6), "rms_norm_eps");
  EXPECT_CONTAINS(refusal("rope_theta", 0.0), "rope_theta");
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                          "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 62, ~uint64_t{0}}) {
      EXPECT_CONTAINS(refusal(key, value), key) << value;
    }
  }
  EXPECT_CONTAINS(refusal("num_hidden_layers", 1'000'000), "must be 1 to 10000");
  for (const auto& [key, value] : std::vector<std::pair<std::string, double>>{
           {"factor", 0.0}, {"factor", 0.5}, {"high_freq_factor", 1.0}, {"low_freq_factor", 4.0}}) {
    Json scaling = llama_json()["rope_scaling"];
    scaling[key] = value;
    EXPECT_CONTAINS(refusal("rope_scaling", scaling), key == "low_freq_factor" ? "high_freq_factor" : key);
  }
}

TEST(HfConfig, ARotaryTypeIsRefusedUnderTheKeyOfTheFile) {
  EXPECT_CONTAINS(refusal("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}),
                  "\"rope_scaling.type\" is \"yarn\"");
}

TEST(HfConfig, EveryWrittenKeyIsKnownToTheReader) {
  const Json json = llama_json();
  for (const auto& [key, value] : json.items()) {
    EXPECT_TRUE(std::ranges::any_of(hf_fields(), [&](const HfField& field) { return field.key == key; }))
        << key;
  }
}

TEST(HfGeneration, KeepsAllSettingsAndEndTokens) {
  const Json generation = {{"eos_token_id", {1, 2}}, {"temperature", 0.6}, {"top_p", 0.9}};
  const Json read = hf_generation(generation, {{"bos_token_id", 5}, {"eos_token_id", 1}}, "dir");
  const Json written = hf_generation_config(read, 7, 8);
  EXPECT_EQ(written["eos_token_id"], Json::array({1, 2}));
  EXPECT_EQ(written["bos_token_id"], 5);
  EXPECT_EQ(written["temperature"], 0.6);
  EXPECT_EQ(written["top_p"], 0.9);
  EXPECT_EQ(hf_config(small_preset("llama3-8b"), DType::f32, written)["eos_token_id"], Json::array({1, 2}));
}

TEST(HfGeneration, MissingIdsComeFromTheTokenizer) {
  const Json written = hf_generation_config(hf_generation(Json::object(), Json::object(), "dir"), 7, {});
  EXPECT_EQ(written["bos_token_id"], 7);
  EXPECT_EQ(written["eos_token_id"], nullptr);
  EXPECT_EQ(hf_generation_config(nullptr, {}, 8)["eos_token_id"], 8);
}

TEST(HfGeneration, AnIdThatIsNotANumberIsRefused) {
  EXPECT_CONTAINS(message_of<FormatError>([] {
                    hf_generation({{"eos_token_id", "</s>"}}, Json::object(), "dir/generation_config.json");
                  }),
                  "eos_token_id");
}

TEST(HfConfig, AMissingSizeIsNamed) {
  Json json = llama_json();
  json.erase("vocab_size");
  const std::string message = message_of<FormatError>([&] { model_from_hf_config(json, "dir/config.json"); });
  EXPECT_CONTAINS(message, "\"vocab_size\" is missing");
  EXPECT_CONTAINS(message_of<FormatError>([] { model_from_hf_config(Json::array(), "x"); }), "JSON object");
}

}  // namespace
}  // namespace stepforge::testing
