// SPDX-License-Identifier: Apache-2.0
// The fused kernels for CPU tensors, each with the signature of its reference. Arguments are those of the operation's own
// header one folder up, whose public function has checked them: contiguous, matching shapes, activations all fp32 or all
// bf16.
#pragma once

#include "stepforge/kernels/reference.h"

namespace stepforge::cpu {

decltype(reference::rms_norm_forward) rms_norm_forward;
decltype(reference::rms_norm_backward) rms_norm_backward;
decltype(reference::bias_forward) bias_forward;
decltype(reference::bias_backward) bias_backward;
decltype(reference::gated_forward) gated_forward;
decltype(reference::gated_backward) gated_backward;
decltype(reference::dropout_add_forward) dropout_add_forward;
decltype(reference::dropout_add_backward) dropout_add_backward;
decltype(reference::qk_norm_rope_forward) qk_norm_rope_forward;
decltype(reference::qk_norm_rope_backward) qk_norm_rope_backward;
decltype(reference::latent_heads_forward) latent_heads_forward;
decltype(reference::latent_heads_backward) latent_heads_backward;
decltype(reference::attention_forward) attention_forward;
decltype(reference::attention_backward) attention_backward;
decltype(reference::attention_sink_gradient) attention_sink_gradient;
decltype(reference::attention_cached) attention_cached;
decltype(reference::cross_entropy) cross_entropy;
decltype(reference::part_maxima) part_maxima;
decltype(reference::part_terms) part_terms;
decltype(reference::part_losses) part_losses;
decltype(reference::cap_logits) cap_logits;
decltype(reference::embedding_forward) embedding_forward;
decltype(reference::embedding_backward) embedding_backward;
decltype(reference::grouped_product) grouped_product;
decltype(reference::grouped_input_gradient) grouped_input_gradient;
decltype(reference::grouped_weight_gradient) grouped_weight_gradient;
decltype(reference::router_forward) router_forward;
decltype(reference::router_backward) router_backward;
decltype(reference::gather_rows) gather_rows;
decltype(reference::combine_rows) combine_rows;
decltype(reference::add_expert_bias) add_expert_bias;
decltype(reference::expert_bias_gradient) expert_bias_gradient;
decltype(reference::add_factor_gradients) add_factor_gradients;
decltype(reference::gated_add_forward) gated_add_forward;
decltype(reference::gated_add_backward) gated_add_backward;
decltype(reference::adamw_update) adamw_update;
decltype(reference::adamw_8bit_update) adamw_8bit_update;
decltype(reference::lion_update) lion_update;
decltype(reference::join_norm_terms) join_norm_terms;
decltype(reference::norm_of_terms) norm_of_terms;
decltype(reference::norm_terms_by_chunk) norm_terms_by_chunk;
decltype(reference::all_finite) all_finite;
decltype(reference::sum_in_order) sum_in_order;
decltype(reference::reciprocal_or_zero) reciprocal_or_zero;
decltype(reference::mean_in_order) mean_in_order;
decltype(reference::clip_coefficient) clip_coefficient;
decltype(reference::flag_if_finite) flag_if_finite;

/// The last step of sums over tokens:
/// target[c] = sum of partials[r * stride + c] over r, in the order of r.
void reduce_rows(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target);

}  // namespace stepforge::cpu
