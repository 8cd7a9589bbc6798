// SPDX-License-Identifier: Apache-2.0
// Model families of plug-ins.
#include <array>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema_docs.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr auto kKeys = std::to_array<HfField>({{.key = "feed_forward_size", .field = "ffn_dim"},
                                               {.key = "attention_bias", .accepted = "[true]"},
                                               {.key = "embedding_dropout"}});

/// Biases as in Qwen2, and its windows.
constexpr ModelFamily kFamily = {.name = "own",
                                 .hf_model_type = "own_type",
                                 .hf_architecture = "OwnForCausalLM",
                                 .traits = {.qkv_bias = true},
                                 .hf_keys_like = "qwen2",
                                 .hf_keys = kKeys,
                                 .hf_defaults = R"({"rms_norm_eps": 1e-3})",
                                 .hf_constants = R"({"attention_bias": true, "hidden_act": "silu"})"};

std::shared_ptr<Registry> registry_with(const std::vector<ModelFamily>& families) {
  auto registry = std::make_shared<Registry>();
  for (const ModelFamily& family : families) registry->add(family);
  return registry;
}

ModelConfig own_model(const std::shared_ptr<Registry>& registry) {
  const Strings settings = {"model.family=own", "model.vocab_size=64", "model.sliding_window=9",
                            "model.head_dim=32",
                            "model.layer_types=[\"sliding_attention\", \"full_attention\"]"};
  return parse_config("", "run.toml", settings, ConfigUse::inspect, {}, registry).config.model;
}

TEST(FamilyOfAPlugin, HasItsTraitsAndTheSettingsOfTheFamilyThatItIsLike) {
  const ModelConfig model = own_model(registry_with({kFamily}));
  const ModelSpec spec = model_spec(model);
  EXPECT_EQ(spec.family, "own");
  EXPECT_NE(spec.find_parameter("layers.0.attention.qkv_bias"), nullptr);
  EXPECT_EQ(layer_traits(model, 0).window, 9);
  EXPECT_EQ(layer_traits(model, 1).window, 0);
  ModelConfig capped = model;
  capped.attention_softcap = 50.0;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(capped); }), "the family \"own\"");
}

TEST(FamilyOfAPlugin, IsWrittenToConfigJsonAndReadBack) {
  const auto registry = registry_with({kFamily});
  const ModelConfig model = own_model(registry);
  Json json = hf_config(model, DType::f32, Json::object());
  EXPECT_EQ(json["model_type"], "own_type");
  EXPECT_EQ(json["architectures"], Json::array({"OwnForCausalLM"}));
  EXPECT_EQ(json["feed_forward_size"], model.ffn_dim);
  EXPECT_FALSE(json.contains("intermediate_size")) << "a key of the plug-in replaces the usual one";
  json["embedding_dropout"] = 0.5;
  EXPECT_EQ(model_from_hf_config(json, "config.json", registry), model);
  json.erase("rms_norm_eps");
  EXPECT_EQ(model_from_hf_config(json, "config.json", registry).norm_eps, 1e-3);
  json["attention_bias"] = false;
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(json, "config.json", registry); }),
                  "\"attention_bias\" is false: only true is supported");
  json.erase("feed_forward_size");
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(json, "config.json", registry); }),
                  "\"feed_forward_size\" is missing");
}

TEST(FamilyOfAPlugin, IsRefusedByNameWithoutThePlugin) {
  const auto registry = registry_with({kFamily});
  ModelConfig model = own_model(registry);
  const Json json = hf_config(model, DType::f32, Json::object());
  EXPECT_CONTAINS(message_of<FormatError>([&] { model_from_hf_config(json, "config.json"); }), "own_type",
                  "is a plug-in missing?");
  model.plugins = nullptr;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(model); }), "model.family = \"own\"",
                  "is a plug-in missing?", "llama, qwen2");
  Config config = parse_config("", "", Strings{"model.family=own"}, ConfigUse::inspect, {}, registry).config;
  config.experimental.custom_import = {"/gone.so"};
  const ModelConfig stored = parse_stored_config(config_toml(config), "state.json").model;
  EXPECT_EQ(stored.family, "own") << "the rest of the run can be read";
  EXPECT_CONTAINS(message_of<UsageError>([&] { family_of(stored); }), "model.family = \"own\"");
}

TEST(FamilyOfAPlugin, ATypeOfConfigJsonThatTwoFamiliesHaveIsRefused) {
  ModelFamily other = kFamily;
  other.name = "other";
  other.hf_model_type = "llama";
  const auto registry = registry_with({kFamily, other});
  EXPECT_EQ(find_hf_family("own_type", *registry)->name, "own");
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_hf_family("llama", *registry); }),
                  "\"llama\" and \"other\"");
}

TEST(FamilyOfAPlugin, AKeyThatSetsNoFieldIsRefused) {
  static constexpr std::array<HfField, 1> keys = {{{.key = "magic", .field = "magic"}}};
  ModelFamily family = kFamily;
  family.hf_keys = keys;
  const auto registry = registry_with({family});
  EXPECT_CONTAINS(message_of<UsageError>([&] { hf_config(own_model(registry), DType::f32, Json::object()); }),
                  "model.magic");
}

TEST(FamilyOfAPlugin, ANameThatIsBuiltInIsRefused) {
  ModelFamily family = kFamily;
  family.name = "llama";
  EXPECT_CONTAINS(message_of<UsageError>([&] { own_model(registry_with({family})); }),
                  "model.family has a built-in one");
}

}  // namespace
}  // namespace stepforge::testing
