// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_fields.h"

#include <algorithm>
#include <array>

#include "stepforge/base/words.h"
#include "stepforge/catalog/families.h"

namespace stepforge {

namespace {

constexpr std::string_view kQwen = "qwen2 qwen3";
constexpr std::string_view kQwenExperts = "qwen2_moe qwen3_moe";
constexpr std::string_view kExperts = "qwen2_moe qwen3_moe mixtral deepseek_v2 deepseek_v3 gpt_oss";
constexpr std::string_view kSizedExperts = "qwen2_moe qwen3_moe deepseek_v2 deepseek_v3";
constexpr std::string_view kDeepseek = "deepseek_v2 deepseek_v3";
constexpr std::string_view kGemma = "gemma2 gemma3";
constexpr std::string_view kWindowed = "qwen2 qwen3 mistral gemma2 gemma3 mixtral gpt_oss";
constexpr std::string_view kWindowedByLayer = "qwen2 qwen3 gemma2 gemma3 gpt_oss";

constexpr auto kFields = std::to_array<HfField>({
    {.key = "hidden_size", .field = "dim"},
    {.key = "num_hidden_layers", .field = "n_layers"},
    {.key = "num_attention_heads", .field = "n_heads"},
    {.key = "num_key_value_heads", .field = "n_kv_heads", .nullable = true},
    {.key = "head_dim", .families = kDeepseek},  // ignored: qk_rope_head_dim
    {.key = "head_dim", .field = "head_dim", .nullable = true},
    {.key = "q_lora_rank", .field = "q_lora_rank", .families = kDeepseek, .nullable = true},
    {.key = "kv_lora_rank", .field = "kv_lora_rank", .families = kDeepseek},
    {.key = "qk_nope_head_dim", .field = "qk_nope_head_dim", .families = kDeepseek},
    {.key = "qk_rope_head_dim", .field = "qk_rope_head_dim", .families = kDeepseek},
    {.key = "v_head_dim", .field = "v_head_dim", .families = kDeepseek},
    {.key = "intermediate_size", .field = "ffn_dim"},
    {.key = "num_experts", .field = "n_experts", .families = kQwenExperts},
    {.key = "num_local_experts", .field = "n_experts", .families = "mixtral gpt_oss"},
    {.key = "n_routed_experts", .field = "n_experts", .families = kDeepseek},
    {.key = "num_experts_per_tok",
     .field = "experts_per_token",
     .families = "deepseek_v2",
     .nullable = true},  // without a default
    {.key = "num_experts_per_tok", .field = "experts_per_token", .families = kExperts},
    {.key = "moe_intermediate_size", .field = "moe_ffn_dim", .families = kSizedExperts},
    {.key = "shared_expert_intermediate_size", .field = "shared_expert_dim", .families = "qwen2_moe"},
    {.key = "n_shared_experts", .field = "n_shared_experts", .families = kDeepseek},
    {.key = "norm_topk_prob", .field = "norm_topk_prob", .families = "qwen2_moe qwen3_moe deepseek_v3"},
    {.key = "routed_scaling_factor", .field = "routed_scaling_factor", .families = kDeepseek},
    {.key = "n_group", .field = "n_expert_groups", .families = kDeepseek, .nullable = true},
    {.key = "topk_group", .field = "groups_per_token", .families = kDeepseek, .nullable = true},
    {.key = "first_k_dense_replace", .field = "first_dense_layers", .families = kDeepseek, .zero = true},
    {.key = "num_nextn_predict_layers", .field = "n_mtp_layers", .families = "deepseek_v3", .zero = true},
    {.key = "decoder_sparse_step", .field = "moe_layer_freq", .families = kQwenExperts},
    {.key = "mlp_only_layers", .field = "dense_layers", .families = kQwenExperts, .nullable = true},
    {.key = "vocab_size", .field = "vocab_size"},
    {.key = "max_position_embeddings", .field = "max_position"},
    {.key = "rms_norm_eps", .field = "norm_eps"},
    {.key = "rope_theta", .field = "rope_theta"},
    {.key = "tie_word_embeddings", .field = "tie_embeddings"},
    {.key = "initializer_range", .field = "score_init_std"},
    {.key = "sliding_window", .field = "sliding_window", .families = kWindowed, .nullable = true},
    {.key = "layer_types", .field = "layer_types", .families = kWindowedByLayer, .nullable = true},
    {.key = "rope_local_base_freq", .field = "rope_local_theta", .families = "gemma3"},
    {.key = "query_pre_attn_scalar", .field = "query_pre_attn_scalar", .families = kGemma},
    {.key = "attn_logit_softcapping", .field = "attention_softcap", .families = "gemma2", .nullable = true},
    {.key = "final_logit_softcapping", .field = "logit_softcap", .families = kGemma, .nullable = true},

    // Other versions of transformers write the number of experts here.
    {.key = "num_local_experts", .families = "qwen3_moe"},

    // Which layers have a window, if layer_types does not say it.
    {.key = "use_sliding_window", .families = kQwen, .nullable = true},
    {.key = "max_window_layers", .families = kQwen},
    {.key = "sliding_window_pattern", .families = "gemma3"},
    {.key = "_sliding_window_pattern", .families = "gemma3"},  // ignored: written beside layer_types

    // Rotary settings, which are read together.
    {"rope_scaling"},
    {"rope_parameters"},
    {"original_max_position_embeddings"},
    {.key = "partial_rotary_factor", .accepted = "[1, null]"},
    {.key = "rope_interleaved", .accepted = "[false, null]"},

    // Not supported by our models.
    {.key = "hidden_act", .accepted = R"(["gelu_pytorch_tanh"])", .families = kGemma},
    {.key = "hidden_activation", .accepted = R"(["gelu_pytorch_tanh"])", .families = kGemma},
    {.key = "use_bidirectional_attention", .accepted = "[false, null]", .families = kGemma},
    {.key = "attn_logit_softcapping",
     .accepted = "[null]",
     .families = "gemma3"},  // transformers does not use it
    {.key = "layer_types", .accepted = "[null]", .families = "mistral mixtral"},  // nor this
    {.key = "qkv_bias", .accepted = "[true]", .families = "qwen2_moe"},
    {.key = "router_jitter_noise", .accepted = "[0, null]", .families = "mixtral"},
    {.key = "norm_topk_prob", .accepted = "[false, null]", .families = "deepseek_v2"},  // nor this
    {.key = "scoring_func", .accepted = R"(["softmax"])", .families = "deepseek_v2"},
    {.key = "scoring_func", .accepted = R"(["sigmoid"])", .families = "deepseek_v3"},
    {.key = "topk_method", .accepted = R"(["greedy", "group_limited_greedy"])", .families = "deepseek_v2"},
    {.key = "topk_method", .accepted = R"(["noaux_tc"])", .families = "deepseek_v3"},
    {.key = "moe_layer_freq", .accepted = "[1]", .families = kDeepseek},
    {.key = "rope_interleave", .accepted = "[true]", .families = "deepseek_v3"},
    {.key = "attention_bias", .accepted = "[true]", .families = "gpt_oss"},
    {.key = "quantization_config", .families = "gpt_oss"},     // read_quantization()
    {.key = "experts_per_token", .families = "gpt_oss"},       // ignored: written beside num_experts_per_tok
    {.key = "initial_context_length", .families = "gpt_oss"},  // ignored: written beside rope_scaling
    {.key = "swiglu_limit", .accepted = "[7.0]", .families = "gpt_oss"},
    {.key = "swiglu_alpha", .accepted = "[1.702]", .families = "gpt_oss"},
    {.key = "hidden_act", .accepted = R"(["silu"])"},
    {.key = "attention_bias", .accepted = "[false, null]"},
    {.key = "mlp_bias", .accepted = "[false, null]"},
    {.key = "attention_dropout", .accepted = "[0, null]"},
    {.key = "use_sliding_window", .accepted = "[false, null]"},
    {.key = "layer_types", .accepted = R"(["full_attention", null])"},
    {.key = "is_causal", .accepted = "[true]"},
    {.key = "is_encoder_decoder", .accepted = "[false, null]"},
    {.key = "add_cross_attention", .accepted = "[false, null]"},
    {.key = "cross_attention_hidden_size", .accepted = "[null]"},
    {.key = "tie_encoder_decoder", .accepted = "[false, null]"},
    {.key = "pruned_heads", .accepted = "[{}, null]"},
    {.key = "per_layer_config", .accepted = "[{}, null]"},
    {.key = "quantization_config", .accepted = "[null]"},
    {.key = "transformers_weights", .accepted = "[null]"},  // weights in another file
    {.key = "auto_map", .accepted = "[null]"},              // code that is shipped with the model

    // Ignored: metadata of the file.
    {"model_type"},
    {"architectures"},
    {"transformers_version"},
    {"_name_or_path"},
    {"name_or_path"},
    {"_commit_hash"},
    {"dtype"},
    {"torch_dtype"},
    {"tokenizer_class"},
    {"unsloth_fixed"},
    {"unsloth_version"},
    {"is_llama_config"},
    {"is_decoder"},

    // Ignored: how calls run and which of their results they return.
    {"use_cache"},
    {"cache_implementation"},
    {"return_dict"},
    {"output_hidden_states"},
    {"output_attentions"},
    {"tie_last_hidden_states"},
    {"attn_implementation"},
    {"_attn_implementation"},
    {"_attn_implementation_autoset"},
    {"chunk_size_feed_forward"},
    {"pretraining_tp"},
    {"gradient_checkpointing"},
    {"torchscript"},
    {"use_bfloat16"},

    // Classification heads, which are read together (read_head() in hf_config.cpp), or ignored.
    {"id2label"},
    {"label2id"},
    {"num_labels"},
    {"problem_type"},
    {"finetuning_task"},
    {"task_specific_params"},

    // Ignored: a loss of the router in training, which transformers adds if it is to return its logits.
    {.key = "router_aux_loss_coef", .families = kExperts},
    {.key = "output_router_logits", .families = kExperts},

    // Ignored: losses of training, and where experts were.
    {.key = "aux_loss_alpha", .families = kDeepseek},
    {.key = "seq_aux", .families = kDeepseek},
    {.key = "ep_size", .families = kDeepseek},
    // Ignored: what follows from other keys.
    {.key = "qk_head_dim", .families = kDeepseek},
    {.key = "num_mtp_layers", .families = "deepseek_v3"},

    // Ignored: models of these families have no window.
    {"sliding_window"},
    {"max_window_layers"},

    // Token ids. transformers does not train the embedding of pad_token_id; here there is no padding, and the
    // embedding of a token is trained wherever the token occurs.
    {"bos_token_id"},
    {"eos_token_id"},
    {"pad_token_id"},
    {"sep_token_id"},
    {"decoder_start_token_id"},
    {"prefix"},

    // Generation settings, which older versions stored here.
    {"assistant_confidence_threshold"},
    {"assistant_lookbehind"},
    {"bad_words_ids"},
    {"begin_suppress_tokens"},
    {"diversity_penalty"},
    {"do_sample"},
    {"early_stopping"},
    {"encoder_no_repeat_ngram_size"},
    {"encoder_repetition_penalty"},
    {"epsilon_cutoff"},
    {"eta_cutoff"},
    {"exponential_decay_length_penalty"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"length_penalty"},
    {"max_length"},
    {"max_new_tokens"},
    {"min_length"},
    {"no_repeat_ngram_size"},
    {"num_assistant_tokens"},
    {"num_assistant_tokens_schedule"},
    {"num_beam_groups"},
    {"num_beams"},
    {"num_return_sequences"},
    {"output_scores"},
    {"remove_invalid_values"},
    {"repetition_penalty"},
    {"return_dict_in_generate"},
    {"suppress_tokens"},
    {"target_lookbehind"},
    {"temperature"},
    {"top_k"},
    {"top_p"},
    {"typical_p"},
});

constexpr auto kRopeFields = std::to_array<HfField>({
    {"rope_type"},
    {"type"},
    {.key = "rope_theta", .field = "rope_theta"},
    {.key = "factor", .field = "rope_scaling.factor"},
    {.key = "low_freq_factor", .field = "rope_scaling.low_freq_factor"},
    {.key = "high_freq_factor", .field = "rope_scaling.high_freq_factor"},
    {.key = "original_max_position_embeddings", .field = "rope_scaling.original_max_position"},
    {.key = "attention_factor", .field = "rope_scaling.attention_factor", .nullable = true},
    {.key = "beta_fast", .field = "rope_scaling.beta_fast", .nullable = true},
    {.key = "beta_slow", .field = "rope_scaling.beta_slow", .nullable = true},
    {.key = "mscale", .field = "rope_scaling.mscale", .nullable = true},
    {.key = "mscale_all_dim", .field = "rope_scaling.mscale_all_dim", .nullable = true},
    {.key = "truncate", .field = "rope_scaling.truncate"},
    {.key = "short_factor", .field = "rope_scaling.short_factor"},
    {.key = "long_factor", .field = "rope_scaling.long_factor"},
    {.key = "partial_rotary_factor", .accepted = "[1, null]"},
});

}  // namespace

std::span<const HfField> hf_fields() {
  return kFields;
}

std::vector<HfField> hf_fields(const ModelFamily& family) {
  std::vector<HfField> rows(family.hf_keys.begin(), family.hf_keys.end());
  const std::string_view name = family.hf_keys_like.empty() ? family.name : family.hf_keys_like;
  for (const HfField& row : kFields) {
    if ((!row.families.empty() && !has_word(row.families, name)) || find_hf_field(rows, row.key) != nullptr)
      continue;
    const auto sets_its_field = [&](const HfField& own) {
      return !row.field.empty() && own.field == row.field;
    };
    if (std::ranges::none_of(family.hf_keys, sets_its_field)) rows.push_back(row);
  }
  return rows;
}

const HfField* find_hf_field(std::span<const HfField> rows, std::string_view key) {
  const auto row = std::ranges::find(rows, key, &HfField::key);
  return row == rows.end() ? nullptr : &*row;
}

bool has_setting(const ModelFamily& family, std::string_view field) {
  return std::ranges::count(hf_fields(family), field, &HfField::field) > 0;
}

std::span<const HfField> hf_rope_fields() {
  return kRopeFields;
}

}  // namespace stepforge
