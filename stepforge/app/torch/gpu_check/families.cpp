// SPDX-License-Identifier: Apache-2.0
// The stage "families".
#include "stepforge/app/torch/gpu_check/families.h"

#include <algorithm>

#include "stepforge/catalog/hf_fields.h"

namespace stepforge::gpu_check {

namespace {

constexpr double kFamily32 = 1e-5;
constexpr double kFamily16 = 2e-2;

struct FamilySetting {
  const char* field;
  const char* value;
};
constexpr FamilySetting kSettings[] = {
    {"query_pre_attn_scalar", "11"},
    {"attention_softcap", "1.5"},
    {"logit_softcap", "2.5"},
    {"n_experts", "6"},
    {"experts_per_token", "3"},
    {"moe_ffn_dim", "20"},
    {"shared_expert_dim", "28"},
    {"n_shared_experts", "2"},
    {"routed_scaling_factor", "1.5"},
    {"n_expert_groups", "3"},
    {"groups_per_token", "2"},
    {"kv_lora_rank", "14"},
    {"qk_nope_head_dim", "6"},
    {"qk_rope_head_dim", "4"},
    {"v_head_dim", "7"},
    {"sliding_window", "7"},
    {"layer_types", R"(["sliding_attention","full_attention"])"},
    {"rope_local_theta", "500.0"},
};

/// Losses of one family on the CPU and on the device.
void check_family(const Check& check, Findings& found, const ModelFamily& family, bool narrow, Json& row) {
  const std::string type = narrow ? "bf16" : "fp32";
  const std::string what = format("{} in {}", family.name, type);
  Recipe recipe{.name = "family", .options = small_model()};
  const Strings own = family_options(family);
  recipe.options.insert(recipe.options.end(), own.begin(), own.end());
  recipe.options.push_back("precision.compute=" + type);
  recipe.hashed = check.exact();
  if (check.small) recipe.options.emplace_back("training.steps=2");
  Trained on[2];
  for (const On place : {On::cpu, On::device}) {
    recipe.on = place;
    forget(check, recipe.name);
    on[static_cast<size_t>(place)] = train(check, recipe);
  }
  const Trained& cpu = on[0];
  const Trained& device = on[1];
  const double tolerance = narrow ? kFamily16 : kFamily32;
  const auto first = [](const std::vector<double>& all) {
    return std::vector<double>(all.begin(), all.begin() + std::min<std::ptrdiff_t>(1, std::ssize(all)));
  };
  row[type] = {{"first_step",
                compare(check, found, what + ", 1 step", first(device.losses), first(cpu.losses), tolerance)},
               {"steps", std::ssize(cpu.losses)},
               {"all_steps", compare(check, found, format("{}, {} steps", what, std::ssize(cpu.losses)),
                                     device.losses, cpu.losses, tolerance)},
               {"gradient_norms", largest_difference(device.norms, cpu.norms)}};
  if (recipe.hashed && device.weights != cpu.weights)
    found.fail("{}: the weights at the end are not those of the CPU", what);
}

}  // namespace

Strings family_options(const ModelFamily& family) {
  Strings options = {format("model.family={}", family.name)};
  for (const auto& [field, value] : kSettings)
    if (has_setting(family, field)) options.push_back(format("model.{}={}", field, value));
  if (has_setting(family, "q_lora_rank"))
    options.push_back(format("model.q_lora_rank={}", family.name == "deepseek_v3" ? 18 : 0));
  if (has_setting(family, "norm_topk_prob"))
    options.push_back(format("model.norm_topk_prob={}", family.name != "qwen2_moe"));
  if (family.traits.latent())
    options.insert(options.end(), {"model.n_heads=4", "model.n_kv_heads=4", "model.head_dim=0"});
  return options;
}

void check_families(Check& check, Findings& found) {
  Json rows = Json::object();
  double worst[2] = {};
  int families = 0;
  for (const ModelFamily& family : model_families()) {
    Json row = Json::object();
    for (const bool narrow : {false, true}) {
      try {
        check_family(check, found, family, narrow, row);
        double& so_far = worst[narrow ? 1 : 0];
        so_far = std::max(so_far, row[narrow ? "bf16" : "fp32"]["all_steps"].get<double>());
      } catch (const std::exception& failure) {
        found.fail("{} in {}: {}", family.name, narrow ? "bf16" : "fp32", reason_of(failure));
      }
    }
    rows[std::string(family.name)] = row;
    ++families;
  }
  found.figure("families", rows);
  found.note("{} families; largest difference of losses: fp32 {:.2g} ({} allowed), bf16 {:.2g} ({} allowed)",
             families, worst[0], check.exact() ? 0 : kFamily32, worst[1], check.exact() ? 0 : kFamily16);
}

}  // namespace stepforge::gpu_check
