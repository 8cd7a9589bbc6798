// SPDX-License-Identifier: Apache-2.0
// A model family: Seed-OSS (ByteDance 2025), which is Llama with biases of queries, keys and values.
#include <array>

#include <stepforge/base/plugin.h>
#include <stepforge/catalog/families.h>

using namespace stepforge;

/// The keys of its config.json that Llama does not have, or has with other values.
static constexpr auto kKeys = std::to_array<HfField>({
    {.key = "attention_bias", .accepted = "[true]"},
    {.key = "attention_out_bias", .accepted = "[false]"},
    {.key = "attention_dropout"},  // neither this nor the next one changes a trained model
    {.key = "residual_dropout"},
});

STEPFORGE_PLUGIN(registry) {
  registry.add(ModelFamily{
      .name = "seed_oss",
      .hf_model_type = "seed_oss",
      .hf_architecture = "SeedOssForCausalLM",
      .traits = {.qkv_bias = true},
      .hf_keys = kKeys,
      .hf_defaults = R"({"max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "num_key_value_heads": 8,
                         "head_dim": 128})",
      .hf_constants = R"({"hidden_act": "silu", "attention_bias": true, "attention_out_bias": false,
                          "mlp_bias": false, "residual_dropout": 0.0})"});
}
