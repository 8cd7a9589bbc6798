// SPDX-License-Identifier: Apache-2.0
// Every family, with all settings that it may have.
#pragma once

#include <string>
#include <vector>

#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/config/config.h"

namespace stepforge::testing {

inline std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) names.emplace_back(family.name);
  return names;
}

/// Whether keys and values come from a latent, which is not exchanged with other ranks.
inline bool has_latents(const std::string& family) {
  return find_family(family).traits.latent();
}

/// Whether queries of all heads are normed together, or come from a latent: such heads cannot be divided over ranks.
inline bool needs_whole_attention(const std::string& family) {
  return find_family(family).traits.qk_norm == QkNormScope::all_heads || has_latents(family);
}

/// Whether layers may have a window, which a ring of ranks does not support.
inline bool may_slide(const std::string& family) {
  return has_setting(find_family(family), "sliding_window");
}

/// Whether layers have experts instead of an MLP.
inline bool has_experts(const std::string& family) {
  return has_setting(find_family(family), "n_experts");
}

/// A window in even layers or in all, caps, a second rotary base, experts.
inline void use_all_settings(ModelConfig& config) {
  const auto has = [&](const char* field) { return has_setting(family_of(config), field); };
  if (has("sliding_window")) config.sliding_window = 7;
  if (has("layer_types"))
    config.layer_types = {AttentionKind::sliding_attention, AttentionKind::full_attention};
  if (has("rope_local_theta")) config.rope_local_theta = 500.0;
  if (has("query_pre_attn_scalar")) config.query_pre_attn_scalar = 11;
  if (has("attention_softcap")) config.attention_softcap = 1.5;
  if (has("logit_softcap")) config.logit_softcap = 2.5;
  if (has("n_experts")) config.n_experts = 6;
  if (has("experts_per_token")) config.experts_per_token = 3;
  if (has("moe_ffn_dim")) config.moe_ffn_dim = 20;
  if (has("shared_expert_dim")) config.shared_expert_dim = 28;
  if (has("norm_topk_prob")) config.norm_topk_prob = config.family != "qwen2_moe";
  if (has("n_shared_experts")) config.n_shared_experts = 2;
  if (has("routed_scaling_factor")) config.routed_scaling_factor = 1.5;
  if (has("n_expert_groups")) config.n_expert_groups = 3;
  if (has("groups_per_token")) config.groups_per_token = 2;
  if (!has_latents(config.family)) return;
  config.n_kv_heads = config.n_heads;
  config.head_dim = 0;
  config.q_lora_rank = config.family == "deepseek_v3" ? 18 : 0;
  config.kv_lora_rank = 14;
  config.qk_nope_head_dim = 6;
  config.qk_rope_head_dim = 4;
  config.v_head_dim = 7;
}

/// The same as overrides of a configuration; without windows if they are not wanted.
inline std::vector<std::string> setting_overrides(const std::string& family, bool windows = true) {
  std::vector<std::string> overrides = {"model.family=" + family};
  const auto add = [&](const std::string& field, const std::string& value) {
    if (has_setting(find_family(family), field)) overrides.push_back("model." + field + "=" + value);
  };
  add("query_pre_attn_scalar", "11");
  add("attention_softcap", "1.5");
  add("logit_softcap", "2.5");
  add("n_experts", "6");
  add("experts_per_token", "3");
  add("moe_ffn_dim", "20");
  add("shared_expert_dim", "28");
  add("norm_topk_prob", family == "qwen2_moe" ? "false" : "true");
  add("n_shared_experts", "2");
  add("routed_scaling_factor", "1.5");
  add("n_expert_groups", "3");
  add("groups_per_token", "2");
  add("q_lora_rank", family == "deepseek_v3" ? "18" : "0");
  add("kv_lora_rank", "14");
  add("qk_nope_head_dim", "6");
  add("qk_rope_head_dim", "4");
  add("v_head_dim", "7");
  if (has_latents(family))
    overrides.insert(overrides.end(), {"model.n_heads=4", "model.n_kv_heads=4", "model.head_dim=0"});
  if (!windows) return overrides;
  add("sliding_window", "7");
  add("layer_types", R"(["sliding_attention","full_attention"])");
  add("rope_local_theta", "500.0");
  return overrides;
}

}  // namespace stepforge::testing
