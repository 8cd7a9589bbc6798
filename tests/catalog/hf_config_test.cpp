// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_config.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/words.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
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
  for (const EmbeddedFile& embedded : embedded_presets()) {
    ModelConfig model = small_preset(embedded.name);
    // config.json holds the head size itself.
    if (model.head_dim == 0 && !has_latents(model)) model.head_dim = model.dim / model.n_heads;
    // It has no settings of training.
    model.router_aux_loss_weight = 0.0;
    model.router_bias_update_speed = 0.0;
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
  EXPECT_CONTAINS(message, "llama, qwen2, qwen3, mistral, olmo2, gemma2, gemma3_text");
}

TEST(HfConfig, UnsupportedComputationIsRefused) {
  EXPECT_CONTAINS(refusal("attention_bias", true), "attention_bias");
  EXPECT_CONTAINS(refusal("mlp_bias", true), "mlp_bias");
  EXPECT_CONTAINS(refusal("use_sliding_window", true), "use_sliding_window");
  EXPECT_CONTAINS(refusal("attn_logit_softcapping", 50.0), "attn_logit_softcapping");
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

/// What becomes of a key of config.json if its value is another one than the default.
enum class Meaning : uint8_t { read, refused, ignored };

/// The meaning of the keys in the file of a family, of those that are not read.
Meaning meaning_of(const std::string& family, const std::string& key) {
  static const std::set<std::string> ignored = {"_name_or_path",
                                                "architectures",
                                                "bos_token_id",
                                                "chunk_size_feed_forward",
                                                "dtype",
                                                "eos_token_id",
                                                "id2label",
                                                "label2id",
                                                "output_attentions",
                                                "pad_token_id",
                                                "output_hidden_states",
                                                "pretraining_tp",
                                                "problem_type",
                                                "return_dict",
                                                "transformers_version",
                                                "use_cache",
                                                "_sliding_window_pattern",
                                                "router_aux_loss_coef",
                                                "output_router_logits",
                                                "qk_head_dim",
                                                "num_mtp_layers"};
  static const std::set<std::string> refused = {
      "attention_bias",      "attention_dropout", "hidden_act",
      "hidden_activation",   "head_dim",          "is_encoder_decoder",
      "layer_types",         "mlp_bias",          "use_bidirectional_attention",
      "model_type",          "rope_parameters",   "num_attention_heads",
      "num_key_value_heads", "qkv_bias",          "router_jitter_noise",
      "topk_method",         "rope_interleave",   "swiglu_limit",
      "swiglu_alpha"};
  const bool qwen = family == "qwen2" || family == "qwen3";
  if (family.starts_with("deepseek") && key == "head_dim") return Meaning::ignored;
  if (family == "deepseek_v2" && key == "norm_topk_prob") return Meaning::refused;
  // Of routers that are greedy.
  if (family == "deepseek_v2" && (key == "n_group" || key == "topk_group")) return Meaning::ignored;
  // Without use_sliding_window no layer has a window, and layer_types comes before max_window_layers.
  if (qwen && (key == "sliding_window" || key == "max_window_layers" || key == "use_sliding_window"))
    return Meaning::ignored;
  // Layers with experts have no windows of their own in the first, and no windows here in the second.
  if (family.ends_with("_moe") && (key == "sliding_window" || key == "max_window_layers"))
    return Meaning::ignored;
  if (family.ends_with("_moe") && key == "use_sliding_window") return Meaning::refused;
  if (key == "attn_logit_softcapping") return family == "gemma2" ? Meaning::read : Meaning::refused;
  if (ignored.contains(key)) return Meaning::ignored;
  return refused.contains(key) ? Meaning::refused : Meaning::read;
}

Json other_value(const std::string& key, const Json& value) {
  if (key == "head_dim") return 7;
  if (key == "num_attention_heads") return 3;
  if (key == "mlp_only_layers") return Json::array({1});
  if (key == "num_hidden_layers") return value.get<int>() + 1;
  if (value.is_null() && (key.ends_with("softcapping") || key == "sliding_window" || key.ends_with("group") ||
                          key == "num_experts_per_tok"))
    return 40;
  return changed(value);
}

TEST(HfConfig, ClassifiersOfOneLabelAreRewardModels) {
  for (const ModelFamily& family : model_families()) {
    ModelConfig model =
        model_from_hf_config(golden("fields.json").at(std::string(family.hf_model_type)), "x");
    model.head = HeadKind::score;
    model.score_init_std = 0.5;
    const Json json = hf_config(model, DType::f32, Json::object());
    EXPECT_EQ(json["initializer_range"], 0.5);
    EXPECT_EQ(json["id2label"].size(), 1U);
    const ModelConfig read = model_from_hf_config(json, "config.json");
    EXPECT_TRUE(read.scores()) << family.name;
    EXPECT_EQ(read.score_init_std, 0.5) << family.name;
  }
  const auto name_of = [](const std::string& preset) {
    ModelConfig model = small_preset(preset);
    model.head = HeadKind::score;
    return hf_config(model, DType::f32, Json::object())["architectures"][0];
  };
  EXPECT_EQ(name_of("qwen3-0.6b"), "Qwen3ForSequenceClassification");
  EXPECT_EQ(name_of("gemma3-1b"), "Gemma3TextForSequenceClassification");
}

TEST(HfConfig, OtherClassifiersAreRefused) {
  Json json = llama_json();
  json["architectures"] = Json::array({"LlamaForSequenceClassification"});
  const auto refusal_of = [](const Json& file) {
    return message_of<FormatError>([&] { model_from_hf_config(file, "x"); });
  };
  EXPECT_CONTAINS(refusal_of(json), "2 labels") << "the default of transformers";
  json["id2label"] = {{"0", "bad"}, {"1", "fair"}, {"2", "good"}};
  EXPECT_CONTAINS(refusal_of(json), "3 labels", "reward models");
  json["num_labels"] = 1;
  EXPECT_TRUE(model_from_hf_config(json, "x").scores());
}

TEST(HfConfig, GptOssIsReadWithItsDefaultsAndQuantization) {
  Json json = hf_config(small_preset("gpt-oss-20b"), DType::bf16, Json::object());
  const ModelConfig model = model_from_hf_config(json, "config.json");
  // Keys of the published file.
  json["quantization_config"] = {{"quant_method", "mxfp4"},
                                 {"modules_to_not_convert", {"model.layers.*.mlp.router"}}};
  json["initial_context_length"] = 4096;
  json["experts_per_token"] = 4;
  for (const char* key : {"rope_scaling", "layer_types", "head_dim", "sliding_window"}) json.erase(key);
  EXPECT_EQ(model_from_hf_config(json, "config.json"), model);
  json["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(model_from_hf_config(json, "config.json").rope_scaling, RopeScalingConfig());
  json["quantization_config"]["quant_method"] = "bitsandbytes";
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(json, "x"); }), "mxfp4");
  ModelConfig whole = model;  // transformers needs a size of windows even if no layer has one
  whole.sliding_window = 0;
  whole.layer_types = {};
  const Json without_windows = hf_config(whole, DType::f32, Json::object());
  EXPECT_EQ(without_windows["sliding_window"], 128);
  EXPECT_EQ(model_from_hf_config(without_windows, "x"), whole);
  ModelConfig unscaled = model;
  unscaled.rope_scaling = {};
  EXPECT_EQ(model_from_hf_config(hf_config(unscaled, DType::f32, Json::object()), "x"), unscaled);
}

TEST(HfConfig, EveryFieldOfTransformersIsReadRefusedOrIgnored) {
  const Json fields = golden("fields.json");
  for (const ModelFamily& family : model_families()) {
    const std::string name(family.hf_model_type);
    const Json& defaults = fields.at(name);
    const ModelConfig model = model_from_hf_config(defaults, "config.json");
    for (const auto& [key, value] : defaults.items()) {
      SCOPED_TRACE(name + ": " + key);
      Json json = defaults;
      json[key] = other_value(key, value);
      // With another number of layers the list of their types is another one.
      if (key == "num_hidden_layers") json.erase("layer_types");
      if (meaning_of(name, key) == Meaning::refused) {
        const std::string message =
            message_of<FormatError>([&] { model_from_hf_config(json, "dir/config.json"); });
        EXPECT_CONTAINS(message, "dir/config.json: \"") << message;
        EXPECT_CONTAINS(message, key == "num_attention_heads" ? "num_key_value_heads" : key) << message;
      } else {
        EXPECT_EQ(model_from_hf_config(json, "config.json") == model,
                  meaning_of(name, key) == Meaning::ignored);
      }
    }
  }
}

/// Keys whose defaults are those of the family; sizes must be in the file.
TEST(HfConfig, MissingKeysHaveTheDefaultsOfTransformers) {
  const Json fields = golden("fields.json");
  const std::set<std::string> sizes = {"model_type",          "hidden_size",       "num_hidden_layers",
                                       "num_attention_heads", "intermediate_size", "vocab_size"};
  for (const ModelFamily& family : model_families()) {
    const std::string name(family.hf_model_type);
    const Json& defaults = fields.at(name);
    Json file;
    for (const std::string& key : sizes) file[key] = defaults.at(key);
    EXPECT_EQ(model_from_hf_config(file, "config.json"), model_from_hf_config(defaults, "config.json"))
        << name;
    const Json stated = Json::parse(family.hf_defaults);
    for (const auto& [key, value] : stated.items()) {
      if (key != "rope_theta" && key != "rope_local_base_freq" && defaults.contains(key) &&
          !defaults[key].is_null()) {
        EXPECT_EQ(value, defaults[key]) << name << ": " << key;
      }
    }
  }
}

Json preset_json(const std::string& name) {
  return hf_config(small_preset(name), DType::f32, Json::object());
}

TEST(HfConfig, LayersHaveWindowsAsTransformersGivesThemToThem) {
  using enum AttentionKind;
  Json gemma = preset_json("gemma2-2b");
  gemma.erase("layer_types");
  EXPECT_EQ(model_from_hf_config(gemma, "config.json").layer_types,
            (std::vector{sliding_attention, full_attention}));
  Json gemma3 = preset_json("gemma3-1b");
  gemma3.erase("layer_types");
  EXPECT_EQ(model_from_hf_config(gemma3, "config.json").layer_types.size(), 6U);
  gemma3["sliding_window_pattern"] = 3;
  EXPECT_EQ(model_from_hf_config(gemma3, "config.json").layer_types,
            (std::vector{sliding_attention, sliding_attention, full_attention}));
  gemma3["sliding_window_pattern"] = 1;
  const ModelConfig without = model_from_hf_config(gemma3, "config.json");
  EXPECT_EQ(without.sliding_window, 0);
  EXPECT_EQ(without.rope_local_theta, 0.0);

  Json qwen = preset_json("qwen2.5-0.5b");
  qwen.erase("layer_types");
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 32;
  qwen["max_window_layers"] = 20;
  const ModelConfig from_20 = model_from_hf_config(qwen, "config.json");
  EXPECT_EQ(from_20.sliding_window, 32);
  for (const int64_t layer : {0, 19, 20, 23})
    EXPECT_EQ(layer_traits(from_20, layer).window, layer < 20 ? 0 : 32) << layer;
  const Json written = hf_config(from_20, DType::f32, Json::object());
  EXPECT_EQ(written["max_window_layers"], 20);
  EXPECT_EQ(written["use_sliding_window"], true);
  EXPECT_EQ(model_from_hf_config(written, "config.json"), from_20);
  qwen["max_window_layers"] = 24;
  EXPECT_EQ(model_from_hf_config(qwen, "config.json").sliding_window, 0);

  Json mistral = preset_json("mistral-7b-v0.1");
  EXPECT_EQ(mistral["sliding_window"], 4096);
  EXPECT_FALSE(mistral.contains("layer_types"));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(model_from_hf_config(mistral, "config.json").sliding_window, 0);
}

TEST(HfConfig, LayersThatSlideWithoutAWindowAreRefused) {
  Json gemma = preset_json("gemma2-2b");
  gemma["sliding_window"] = nullptr;
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(gemma, "x"); }), "sliding_window");
  gemma = preset_json("gemma2-2b");
  gemma["layer_types"][3] = "chunked_attention";
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(gemma, "x"); }), "layer_types[3]");
  gemma["layer_types"] = {"full_attention"};
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(gemma, "x"); }),
                  "num_hidden_layers = 26");
  Json qwen = preset_json("qwen2.5-0.5b");
  qwen["layer_types"][3] = "sliding_attention";
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(qwen, "x"); }), "use_sliding_window");
  gemma = preset_json("gemma2-2b");
  gemma["attn_logit_softcapping"] = 0.0;
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(gemma, "x"); }), "null stands for none");
}

TEST(HfConfig, TheNumberOfExpertsHasTheKeyOfEitherVersionOfTransformers) {
  Json json = preset_json("qwen3-30b-a3b");
  EXPECT_EQ(json["num_experts"], 128);
  json["num_local_experts"] = 64;
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(json, "x"); }), "num_local_experts");
  json.erase("num_experts");
  EXPECT_EQ(model_from_hf_config(json, "config.json").n_experts, 64);
  json["mlp_only_layers"] = {0, 2, 70};  // transformers does not mind layers that the model does not have
  const ModelConfig model = model_from_hf_config(json, "config.json");
  EXPECT_EQ(model.dense_layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(hf_config(model, DType::f32, Json::object())["mlp_only_layers"], Json::array({0, 2}));
  EXPECT_EQ(preset_json("mixtral-8x7b")["num_local_experts"], 8);
}

TEST(HfConfig, TheGroupsOfExpertsCountUnlessTheRouterIsGreedy) {
  Json json = preset_json("deepseek-v2-lite");
  EXPECT_EQ(json["topk_method"], "greedy");
  EXPECT_EQ(json["q_lora_rank"], nullptr);
  json["n_group"] = 8;
  json["topk_group"] = 3;
  EXPECT_EQ(model_from_hf_config(json, "x").n_expert_groups, 1);
  json["topk_method"] = "group_limited_greedy";
  const ModelConfig model = model_from_hf_config(json, "x");
  EXPECT_EQ(model.n_expert_groups, 8);
  EXPECT_EQ(model.groups_per_token, 3);
  EXPECT_EQ(hf_config(model, DType::f32, Json::object())["topk_method"], "group_limited_greedy");
  EXPECT_EQ(preset_json("deepseek-v3")["topk_method"], "noaux_tc");
}

TEST(HfConfig, SettingsOfDeepseekThatChangeTheResultAreRefused) {
  const auto refusal_of = [](Json json, const char* key, const Json& value) {
    json[key] = value;
    return message_of<FormatError>([&] { model_from_hf_config(json, "x"); });
  };
  const Json v2 = preset_json("deepseek-v2-lite");
  const Json v3 = preset_json("deepseek-v3");
  EXPECT_CONTAINS(refusal_of(v2, "norm_topk_prob", true), "norm_topk_prob");
  EXPECT_CONTAINS(refusal_of(v2, "scoring_func", "sigmoid"), "scoring_func");
  EXPECT_CONTAINS(refusal_of(v3, "scoring_func", "softmax"), "scoring_func");
  EXPECT_CONTAINS(refusal_of(v3, "topk_method", "greedy"), "topk_method");
  EXPECT_CONTAINS(refusal_of(v3, "moe_layer_freq", 2), "moe_layer_freq");
  EXPECT_CONTAINS(refusal_of(v3, "rope_interleave", false), "rope_interleave");
  EXPECT_CONTAINS(refusal_of(v3, "quantization_config", {{"fmt", "e4m3"}}), "quantization_config");
  EXPECT_CONTAINS(
      refusal_of(v3, "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"mscale_all_dim", 1.0}}),
      "mscale_all_dim");
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

/// The settings of a model whose rotary embedding transformers builds with these.
RopeScalingConfig scaling_of(const Json& rope) {
  RopeScalingConfig scaling;
  if (rope["rope_type"] == "default") return scaling;
  const auto number = [&](const char* key, double& field) {
    if (rope.contains(key) && !rope[key].is_null()) field = rope[key].get<double>();
  };
  number("factor", scaling.factor);
  if (rope["rope_type"] == "linear") scaling.type = RopeScalingType::linear;
  if (rope["rope_type"] == "dynamic") scaling.type = RopeScalingType::dynamic;
  if (rope["rope_type"] == "llama3") {
    scaling.type = RopeScalingType::llama3;
    number("low_freq_factor", scaling.low_freq_factor);
    number("high_freq_factor", scaling.high_freq_factor);
    scaling.original_max_position = rope["original_max_position_embeddings"];
  }
  if (rope["rope_type"] == "yarn") {
    scaling.type = RopeScalingType::yarn;
    number("attention_factor", scaling.attention_factor);
    number("beta_fast", scaling.beta_fast);
    number("beta_slow", scaling.beta_slow);
    number("mscale", scaling.mscale);
    number("mscale_all_dim", scaling.mscale_all_dim);
    scaling.truncate = rope.value("truncate", true);
    scaling.original_max_position = rope["original_max_position_embeddings"];
  }
  if (rope["rope_type"] == "longrope") {
    scaling.type = RopeScalingType::longrope;
    number("attention_factor", scaling.attention_factor);
    scaling.original_max_position = rope["original_max_position_embeddings"];
    if (!rope.contains("factor"))
      scaling.factor = 2048.0 / static_cast<double>(scaling.original_max_position);
    scaling.short_factor = rope["short_factor"].get<std::vector<double>>();
    scaling.long_factor = rope["long_factor"].get<std::vector<double>>();
  }
  return scaling;
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
    const bool two = expected.contains("full_attention");
    const Json& global = two ? expected["full_attention"] : expected;
    EXPECT_EQ(model.rope_theta, global["rope_theta"].get<double>());
    EXPECT_EQ(model.rope_scaling, scaling_of(global));
    if (two) {
      EXPECT_EQ(model.rope_local_theta, expected["sliding_attention"]["rope_theta"].get<double>());
    }
    EXPECT_EQ(model_from_hf_config(hf_config(model, DType::f32, Json::object()), "config.json"), model);
  }
}

/// One setting more than its type has.
TEST(HfConfig, RotarySettingsThatTheTypeDoesNotReadAreRefused) {
  const Json long_factors = {1.0, 1.5, 2.0, 4.0};
  const std::vector<Json> types = {
      {{"rope_type", "default"}},
      {{"rope_type", "linear"}, {"factor", 4.0}},
      {{"type", "dynamic"}, {"factor", 4.0}},
      {{"rope_type", "llama3"}, {"factor", 4.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}},
      {{"rope_type", "yarn"}, {"factor", 4.0}},
      {{"rope_type", "longrope"}, {"short_factor", long_factors}, {"long_factor", long_factors}}};
  const std::map<std::string, Json> settings = {{"factor", 2.0},
                                                {"low_freq_factor", 1.5},
                                                {"high_freq_factor", 8.0},
                                                {"attention_factor", 1.5},
                                                {"beta_fast", 16.0},
                                                {"beta_slow", 2.0},
                                                {"mscale", 0.5},
                                                {"mscale_all_dim", 0.5},
                                                {"truncate", false},
                                                {"short_factor", long_factors},
                                                {"long_factor", long_factors}};
  const std::map<std::string, std::string> read = {
      {"default", ""},
      {"linear", "factor"},
      {"dynamic", "factor"},
      {"llama3", "factor low_freq_factor high_freq_factor"},
      {"yarn", "factor attention_factor beta_fast beta_slow mscale mscale_all_dim truncate"},
      {"longrope", "factor attention_factor short_factor long_factor"}};
  for (const Json& type : types) {
    const std::string name = type.value("rope_type", type.value("type", ""));
    for (const auto& [key, value] : settings) {
      Json json = llama_json();
      json["rope_scaling"] = type;
      json["rope_scaling"][key] = value;
      if (has_word(read.at(name), key)) {
        EXPECT_NO_THROW(model_from_hf_config(json, "config.json")) << name << ", " << key;
      } else {
        EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(json, "config.json"); }),
                        "rope_scaling." + key, name);
      }
      json["rope_scaling"] = type;
      json["rope_scaling"]["original_max_position_embeddings"] = 1024;
      json["rope_scaling"]["type"] = json["rope_scaling"]["rope_type"] = name;
      EXPECT_NO_THROW(model_from_hf_config(json, "config.json")) << "as files of every type are published";
    }
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
  EXPECT_CONTAINS(refusal("rope_scaling", {{"type", "proportional"}, {"factor", 4.0}}),
                  "\"rope_scaling.type\" is \"proportional\"");
}

TEST(HfConfig, EveryWrittenKeyIsKnownToTheReader) {
  for (const ModelFamily& family : model_families()) {
    ModelConfig model = small_preset("llama3-8b");
    model.family = family.name;
    const Json written = hf_config(model, DType::f32, Json::object());
    for (const auto& [key, value] : written.items())
      EXPECT_NE(find_hf_field(hf_fields(family), key), nullptr) << family.name << ": " << key;
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
