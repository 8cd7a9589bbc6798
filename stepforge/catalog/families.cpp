// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/find_item.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr LayerTraits kGemmaTraits = {
    .norms = NormPlaces::around, .norm_offset = 1.0, .activation = Activation::gelu_tanh};
constexpr std::string_view kSilu = R"({"hidden_act": "silu", "attention_bias": false})";
constexpr std::string_view kSiluOnly = R"({"hidden_act": "silu"})";
constexpr std::string_view kSoftmaxGroups =
    R"({"hidden_act": "silu", "attention_bias": false, "scoring_func": "softmax", "norm_topk_prob": false, "moe_layer_freq": 1})";
constexpr std::string_view kSigmoidGroups =
    R"({"hidden_act": "silu", "attention_bias": false, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "moe_layer_freq": 1, "rope_interleave": true})";
constexpr std::string_view kGelu =
    R"({"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false})";

constexpr auto kFamilies = std::to_array<ModelFamily>({
    // Llama 2, 3, 3.1, 3.2, 3.3 (Touvron et al. 2023; Grattafiori et al. 2024).
    {.name = "llama",
     .hf_model_type = "llama",
     .hf_architecture = "LlamaForCausalLM",
     .hf_defaults = R"({"max_position_embeddings": 2048, "rms_norm_eps": 1e-6})",
     .hf_constants = kSilu},
    // Qwen2 and Qwen2.5 dense (Yang et al. 2024).
    {.name = "qwen2",
     .hf_model_type = "qwen2",
     .hf_architecture = "Qwen2ForCausalLM",
     .traits = {.qkv_bias = true},
     .hf_defaults = R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 32,
                        "sliding_window": 4096, "max_window_layers": 28})",
     .hf_constants = kSiluOnly},
    // Qwen3 dense (Yang et al. 2025).
    {.name = "qwen3",
     .hf_model_type = "qwen3",
     .hf_architecture = "Qwen3ForCausalLM",
     .traits = {.qk_norm = QkNormScope::head},
     .hf_defaults = R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 32,
                        "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28})",
     .hf_constants = kSilu},
    // Mistral 7B and its successors (Jiang et al. 2023).
    {.name = "mistral",
     .hf_model_type = "mistral",
     .hf_architecture = "MistralForCausalLM",
     .hf_defaults = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 8,
                        "sliding_window": 4096})",
     .hf_constants = kSiluOnly},
    // OLMo 2 (OLMo Team 2024).
    {.name = "olmo2",
     .hf_model_type = "olmo2",
     .hf_architecture = "Olmo2ForCausalLM",
     .traits = {.norms = NormPlaces::after, .qk_norm = QkNormScope::all_heads},
     .hf_defaults = R"({"max_position_embeddings": 2048, "rms_norm_eps": 1e-5})",
     .hf_constants = kSilu},
    // Gemma 2 (Gemma Team 2024).
    {.name = "gemma2",
     .hf_model_type = "gemma2",
     .hf_architecture = "Gemma2ForCausalLM",
     .traits = kGemmaTraits,
     .scaled_embedding = true,
     .hf_defaults = R"({"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "num_key_value_heads": 4,
                        "head_dim": 256, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
                        "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})",
     .hf_constants = kGelu,
     .hf_full_every = 2},
    // The text model of Gemma 3 (Gemma Team 2025).
    {.name = "gemma3",
     .hf_model_type = "gemma3_text",
     .hf_architecture = "Gemma3ForCausalLM",
     .traits = {.norms = kGemmaTraits.norms,
                .norm_offset = kGemmaTraits.norm_offset,
                .qk_norm = QkNormScope::head,
                .activation = kGemmaTraits.activation},
     .scaled_embedding = true,
     .two_ropes = true,
     .hf_defaults = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 4,
                        "head_dim": 256, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
                        "sliding_window": 4096, "rope_theta": 1e6, "rope_local_base_freq": 1e4})",
     .hf_constants = kGelu,
     .hf_full_every = 6},
    // Qwen3 with experts (Yang et al. 2025).
    {.name = "qwen3_moe",
     .hf_model_type = "qwen3_moe",
     .hf_architecture = "Qwen3MoeForCausalLM",
     .traits = {.qk_norm = QkNormScope::head},
     .expert_names = qwen_expert_names,
     .hf_defaults = R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4,
                        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768})",
     .hf_constants = kSilu},
    // Qwen1.5-MoE and Qwen2 with experts, one of which all tokens take (Yang et al. 2024).
    {.name = "qwen2_moe",
     .hf_model_type = "qwen2_moe",
     .hf_architecture = "Qwen2MoeForCausalLM",
     .traits = {.qkv_bias = true},
     .expert_names = qwen_expert_names,
     .hf_defaults = R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 16,
                        "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                        "shared_expert_intermediate_size": 5632})",
     .hf_constants = kSiluOnly},
    // Mixtral 8x7B and 8x22B (Jiang et al. 2024).
    {.name = "mixtral",
     .hf_model_type = "mixtral",
     .hf_architecture = "MixtralForCausalLM",
     .expert_names = mixtral_expert_names,
     .normalized_experts = true,
     .hf_defaults = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8,
                        "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2})",
     .hf_constants = kSiluOnly},
    // DeepSeek-V2, V2-Lite and V2.5 (DeepSeek-AI 2024).
    {.name = "deepseek_v2",
     .hf_model_type = "deepseek_v2",
     .hf_architecture = "DeepseekV2ForCausalLM",
     .traits = {.projection = AttentionProjection::latent, .router = RouterKind::softmax_groups},
     .expert_names = deepseek_expert_names,
     .hf_defaults = R"({"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "first_k_dense_replace": 0,
                        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                        "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
                        "routed_scaling_factor": 1.0, "topk_method": "greedy", "moe_intermediate_size": 1407})",
     .hf_constants = kSoftmaxGroups},
    // DeepSeek-V3, R1 and V3.1 (DeepSeek-AI 2024).
    {.name = "deepseek_v3",
     .hf_model_type = "deepseek_v3",
     .hf_architecture = "DeepseekV3ForCausalLM",
     .traits = {.projection = AttentionProjection::latent, .router = RouterKind::sigmoid_groups},
     .expert_names = deepseek_expert_names,
     .further_layers = true,
     .hf_defaults = R"({"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "first_k_dense_replace": 3,
                        "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
                        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
                        "n_shared_experts": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5,
                        "n_group": 8, "topk_group": 4, "norm_topk_prob": true, "moe_intermediate_size": 2048,
                        "num_nextn_predict_layers": 1})",
     .hf_constants = kSigmoidGroups},
    // gpt-oss 20b and 120b (OpenAI 2025).
    {.name = "gpt_oss",
     .hf_model_type = "gpt_oss",
     .hf_architecture = "GptOssForCausalLM",
     .traits = {.qkv_bias = true, .out_bias = true, .sinks = true, .biased_experts = true},
     .expert_names = gpt_oss_expert_names,
     .normalized_experts = true,
     .hf_defaults = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8,
                        "head_dim": 64, "sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4,
                        "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
                        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                        "original_max_position_embeddings": 4096}})",
     .hf_constants = R"({"hidden_act": "silu", "attention_bias": true, "swiglu_limit": 7.0})",
     .hf_full_every = 2},
});

/// Scores of latent attention grow with the scaling of the rotary embedding (DeepSeek's mscale, yarn only).
double latent_scale(const RopeScalingConfig& scaling) {
  if (scaling.type != RopeScalingType::yarn || scaling.factor <= 1.0) return 1.0;
  const double growth = 0.1 * scaling.mscale_all_dim * std::log(scaling.factor) + 1.0;
  return growth * growth;
}

/// Whether the layer has a window; the list is repeated.
bool has_window(const ModelConfig& model, int64_t layer) {
  if (model.sliding_window == 0) return false;
  const std::vector<AttentionKind>& kinds = model.layer_types;
  return kinds.empty() ||
         kinds[static_cast<size_t>(layer) % kinds.size()] == AttentionKind::sliding_attention;
}

}  // namespace

std::span<const ModelFamily> model_families() {
  return kFamilies;
}

const ModelFamily& find_family(std::string_view name, const Registry& plugins) {
  return find_item<ModelFamily>(name, kFamilies, plugins, "model.family");
}

const ModelFamily& family_of(const ModelConfig& model) {
  return find_family(model.family, plugins_of(model));
}

const Registry& plugins_of(const ModelConfig& model) {
  static const Registry none;
  return model.plugins != nullptr ? *model.plugins : none;
}

const ModelFamily* find_hf_family(std::string_view model_type, const Registry& plugins) {
  const ModelFamily* found = nullptr;
  const auto consider = [&](const ModelFamily& family) {
    if (family.hf_model_type != model_type) return;
    if (found != nullptr) {
      throw UsageError(format(
          "model_type \"{}\" is that of the families \"{}\" and \"{}\": load one plug-in, or rename it",
          model_type, found->name, family.name));
    }
    found = &family;
  };
  std::ranges::for_each(kFamilies, consider);
  std::ranges::for_each(plugins.all<ModelFamily>(), consider);
  return found;
}

bool has_latents(const ModelConfig& model) {
  return family_of(model).traits.latent();
}

LatentDims latent_dims(const ModelConfig& model) {
  return {.width = model.dim,
          .heads = model.n_heads,
          .q_rank = model.q_lora_rank,
          .kv_rank = model.kv_lora_rank,
          .plain = model.qk_nope_head_dim,
          .rotated = model.qk_rope_head_dim,
          .value = model.v_head_dim};
}

int64_t head_size(const ModelConfig& model) {
  if (has_latents(model)) return latent_dims(model).head_dim();
  return model.head_dim > 0 ? model.head_dim : model.dim / model.n_heads;
}

std::vector<AttentionKind> attention_kinds(const ModelConfig& model) {
  std::vector<AttentionKind> kinds;
  for (int64_t layer = 0; layer < model.n_layers; ++layer)
    kinds.push_back(has_window(model, layer) ? AttentionKind::sliding_attention
                                             : AttentionKind::full_attention);
  return kinds;
}

bool has_experts(const ModelConfig& model, int64_t layer) {
  if (family_of(model).expert_names == nullptr) return false;
  if (layer >= model.n_layers) return true;
  return (layer + 1) % model.moe_layer_freq == 0 && layer >= model.first_dense_layers &&
         std::ranges::count(model.dense_layers, layer) == 0;
}

ExpertDims expert_dims(const ModelConfig& model) {
  const int64_t hidden = model.moe_ffn_dim > 0 ? model.moe_ffn_dim : model.ffn_dim;
  return {.width = model.dim,
          .hidden = hidden,
          .experts = model.n_experts,
          .chosen = model.experts_per_token,
          .shared_hidden = model.shared_expert_dim + model.n_shared_experts * hidden,
          .shared_gate = model.shared_expert_dim > 0,
          .biased = family_of(model).traits.biased_experts};
}

bool normalizes_experts(const ModelConfig& model) {
  return model.norm_topk_prob || family_of(model).normalized_experts;
}

RouterSettings router_settings(const ModelConfig& model, const LayerTraits& traits) {
  constexpr double kLeastSum = 1e-20;  // as in transformers
  const bool sigmoid = traits.router == RouterKind::sigmoid_groups;
  return {.options = {.score = sigmoid ? RouterScore::sigmoid : RouterScore::softmax,
                      .chosen = model.experts_per_token,
                      .groups = model.n_expert_groups,
                      .chosen_groups = model.groups_per_token,
                      .group_score = sigmoid ? GroupScore::two_largest : GroupScore::largest,
                      .normalize = normalizes_experts(model),
                      .epsilon = sigmoid ? kLeastSum : 0.0,
                      .factor = model.routed_scaling_factor},
          .balance_weight = model.router_aux_loss_weight,
          .z_weight = model.router_z_loss_weight};
}

RopeSpec rope_spec(const ModelConfig& model) {
  const RopeScalingConfig& scaling = model.rope_scaling;
  return {.size = has_latents(model) ? model.qk_rope_head_dim : head_size(model),
          .theta = model.rope_theta,
          .scaling = {.type = scaling.type,
                      .factor = scaling.factor,
                      .low_freq_factor = scaling.low_freq_factor,
                      .high_freq_factor = scaling.high_freq_factor,
                      .original_max_position = scaling.original_max_position,
                      .attention_factor = scaling.attention_factor,
                      .divisors = scaling.short_factor,
                      .beta_fast = scaling.beta_fast,
                      .beta_slow = scaling.beta_slow,
                      .mscale = scaling.mscale,
                      .mscale_all_dim = scaling.mscale_all_dim,
                      .truncate = scaling.truncate},
          .long_divisors = scaling.long_factor};
}

RopeSpec local_rope_spec(const ModelConfig& model) {
  if (model.rope_local_theta == 0.0) return {};
  return {.size = rope_spec(model).size, .theta = model.rope_local_theta};
}

double embedding_factor(const ModelConfig& model) {
  return family_of(model).scaled_embedding ? std::sqrt(static_cast<double>(model.dim)) : 1.0;
}

bool has_router_losses(const ModelConfig& model) {
  return model.router_aux_loss_weight > 0.0 || model.router_z_loss_weight > 0.0;
}

LayerTraits layer_traits(const ModelConfig& model, int64_t layer) {
  LayerTraits traits = family_of(model).traits;
  traits.layer = layer;
  traits.norm_eps = model.norm_eps;
  const int64_t divisor = model.query_pre_attn_scalar > 0 ? model.query_pre_attn_scalar : head_size(model);
  traits.query_scale = 1.0 / std::sqrt(static_cast<double>(divisor));
  if (traits.latent()) {
    traits.query_scale *= latent_scale(model.rope_scaling);
    if (model.q_lora_rank == 0) traits.projection = AttentionProjection::latent_keys;
  }
  traits.score_cap = model.attention_softcap;
  traits.experts = has_experts(model, layer);
  if (has_window(model, layer)) traits.window = model.sliding_window;
  return traits;
}

}  // namespace stepforge
