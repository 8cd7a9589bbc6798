// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/model_checks.h"

#include <string>
#include <string_view>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// Rows of the model's width that latents add to a layer, at most.
double latent_rows(const ModelConfig& model) {
  const LatentDims dims = latent_dims(model);
  const auto heads = static_cast<double>(dims.heads);
  const auto ranks = static_cast<double>(dims.q_rank) + static_cast<double>(dims.kv_rank);
  const double sizes =
      static_cast<double>(dims.plain) + static_cast<double>(dims.rotated) + static_cast<double>(dims.value);
  return ranks * (1 + 2 * heads * sizes / static_cast<double>(model.dim)) + heads * sizes;
}

/// Throws UsageError for sizes whose products could overflow.
void check_sizes(const ModelConfig& model) {
  constexpr double kMaxParameters = 1e14;
  constexpr int64_t kMaxLayers = 100'000;
  for (const int64_t size : {model.dim, model.n_layers, model.n_heads, model.n_kv_heads, model.ffn_dim})
    if (size <= 0) throw UsageError(format("model: a size is {}; sizes must be positive", size));
  const auto number = [](int64_t size) { return static_cast<double>(size); };
  const ExpertDims experts = expert_dims(model);
  const double head_dim = model.head_dim > 0 ? number(model.head_dim)
                                             : number(model.dim) / number(model.n_heads);  // without latents
  const double rows = 2 * head_dim * (number(model.n_heads) + number(model.n_kv_heads)) +
                      3 * number(model.ffn_dim) + 3 * number(experts.hidden) * number(experts.experts) +
                      3 * number(experts.shared_hidden) + latent_rows(model);
  const double parameters =
      number(model.dim) * (number(model.n_layers + model.n_mtp_layers) * (rows + 2 * number(model.dim)) +
                           2 * number(model.vocab_size));
  if (model.n_layers > kMaxLayers || parameters > kMaxParameters) {
    throw UsageError(
        format("model: {} layers, {:.3g} parameters; at most {} layers and {:.0e} parameters are supported",
               model.n_layers, parameters, kMaxLayers, kMaxParameters));
  }
}

/// Throws UsageError for a setting that the family does not have: other programs would not know of it.
void check_settings(const ModelConfig& model) {
  Config given;
  given.model = model;
  Config usual;
  const auto value = [](Config& config, std::string_view field) {
    const FieldRef ref = find_field(config_schema(), &config, format("model.{}", field));
    return toml_value(*ref.field, slot_of(ref));
  };
  for (const HfField& field : hf_fields()) {
    if (field.field.empty() || has_setting(family_of(model), field.field)) continue;
    if (value(given, field.field) == value(usual, field.field)) continue;
    throw UsageError(
        format("model.{} = {}: models of the family \"{}\" have no such setting; remove it, or "
               "choose another model.family",
               field.field, value(given, field.field), model.family));
  }
  if (family_of(model).two_ropes && model.sliding_window > 0 && model.rope_local_theta == 0.0) {
    throw UsageError(
        format("model.rope_local_theta is not set: in models of the family \"{}\" layers with a window "
               "have a rotary base of their own, which is 10000 in published ones",
               model.family));
  }
}

/// Throws UsageError unless the groups of experts are equal and offer a token enough of them.
void check_groups(const ModelConfig& model) {
  const auto refuse = [&](const std::string& rule) {
    throw UsageError(format("model.n_expert_groups = {}, model.groups_per_token = {}: {}",
                            model.n_expert_groups, model.groups_per_token, rule));
  };
  if (model.n_experts % model.n_expert_groups != 0)
    refuse(format("the groups must divide model.n_experts = {}", model.n_experts));
  if (model.groups_per_token > model.n_expert_groups) refuse("there are fewer groups than a token takes");
  const int64_t size = model.n_experts / model.n_expert_groups;
  if (model.groups_per_token * size < model.experts_per_token) {
    refuse(format("these groups have {} experts, fewer than model.experts_per_token = {}",
                  model.groups_per_token * size, model.experts_per_token));
  }
  if (family_of(model).traits.router == RouterKind::sigmoid_groups && size < 2)
    refuse("a group needs two experts, by which it is judged");
}

/// Throws UsageError unless the sizes of latents are set, and fit.
void check_latents(const ModelConfig& model) {
  if (!has_latents(model)) return;
  for (const auto& [field, size] :
       {std::pair{"kv_lora_rank", model.kv_lora_rank}, std::pair{"qk_nope_head_dim", model.qk_nope_head_dim},
        std::pair{"qk_rope_head_dim", model.qk_rope_head_dim}, std::pair{"v_head_dim", model.v_head_dim}}) {
    if (size > 0) continue;
    throw UsageError(
        format("model.{} is not set: attention of the family \"{}\" needs it", field, model.family));
  }
  if (model.qk_rope_head_dim % 2 != 0) {
    throw UsageError(
        format("model.qk_rope_head_dim = {}: rotary embeddings need an even number", model.qk_rope_head_dim));
  }
  if (model.n_kv_heads != model.n_heads) {
    throw UsageError(
        format("model.n_kv_heads = {}: attention of the family \"{}\" has as many as query heads; set it to "
               "model.n_heads = {}",
               model.n_kv_heads, model.family, model.n_heads));
  }
}

/// Throws UsageError unless the family's models have experts and `model` says how many, or neither.
void check_experts(const ModelConfig& model) {
  const ModelFamily& family = family_of(model);
  if (family.expert_names == nullptr) {
    if (!has_router_losses(model) && model.router_bias_update_speed == 0.0) return;
    throw UsageError(
        format("model.router_aux_loss_weight = {}, model.router_z_loss_weight = {}, "
               "model.router_bias_update_speed = {}: models of the family \"{}\" have no routers; "
               "remove them, or choose another model.family",
               model.router_aux_loss_weight, model.router_z_loss_weight, model.router_bias_update_speed,
               model.family));
  }
  if (model.router_bias_update_speed > 0.0 && family.traits.router != RouterKind::sigmoid_groups) {
    throw UsageError(format(
        "model.router_bias_update_speed = {}: routers of the family \"{}\" have no correction; set it to 0 "
        "and use model.router_aux_loss_weight, or choose another model.family",
        model.router_bias_update_speed, model.family));
  }
  if (model.n_experts < 1) {
    throw UsageError(
        format("model.n_experts is not set: models of the family \"{}\" have experts", model.family));
  }
  if (model.experts_per_token < 1 || model.experts_per_token > model.n_experts) {
    throw UsageError(format("model.experts_per_token = {}: must be from 1 to model.n_experts = {}",
                            model.experts_per_token, model.n_experts));
  }
  for (const std::string_view field : {"shared_expert_dim", "n_shared_experts"}) {
    if (!has_setting(family, field) || expert_dims(model).shared_hidden > 0) continue;
    throw UsageError(
        format("model.{} is not set: models of the family \"{}\" have an expert that all tokens take", field,
               model.family));
  }
  check_groups(model);
  for (const int64_t layer : model.dense_layers) {
    if (layer < model.n_layers) continue;
    throw UsageError(format("model.dense_layers has {}, but model.n_layers = {}: indices begin at 0", layer,
                            model.n_layers));
  }
}

/// Throws UsageError unless longrope has a factor for each frequency.
void check_rope_factors(const ModelConfig& model) {
  const RopeScalingConfig& scaling = model.rope_scaling;
  if (scaling.type != RopeScalingType::longrope) return;
  const int64_t rotated = has_latents(model) ? model.qk_rope_head_dim : head_size(model);
  for (const auto& [name, list] :
       {std::pair{"short_factor", &scaling.short_factor}, std::pair{"long_factor", &scaling.long_factor}}) {
    if (std::ssize(*list) == rotated / 2) continue;
    throw UsageError(
        format("model.rope_scaling.{} has {} numbers: with type \"longrope\" there must be {}, one for each "
               "pair of the {} rotated elements of a head",
               name, list->size(), rotated / 2, rotated));
  }
}

/// Throws UsageError for the weight of a loss that the model does not have, and for layers that a reward model has no use for.
void check_mtp(const ModelConfig& model) {
  if (model.scores() && model.n_mtp_layers > 0)
    throw UsageError(format("model.n_mtp_layers = {}: a reward model predicts no tokens; set it to 0",
                            model.n_mtp_layers));
  if (model.n_mtp_layers > 0 || model.mtp_loss_weight == ModelConfig().mtp_loss_weight) return;
  throw UsageError(
      format("model.mtp_loss_weight = {}, but model.n_mtp_layers = 0: there is no such loss; remove the "
             "weight, or set model.n_mtp_layers",
             model.mtp_loss_weight));
}

}  // namespace

void check_model(const ModelConfig& model) {
  check_sizes(model);
  check_settings(model);
  check_experts(model);
  check_latents(model);
  check_rope_factors(model);
  check_mtp(model);
}

}  // namespace stepforge
