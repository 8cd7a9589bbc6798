// SPDX-License-Identifier: Apache-2.0
// The references: each operation in plain tensor operations, for any device and type of elements. Arguments are those of the
// operation's own header, whose public function has checked them.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"
#include "stepforge/kernels/adamw_8bit.h"
#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/bias.h"
#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/dropout_add.h"
#include "stepforge/kernels/embedding.h"
#include "stepforge/kernels/expert_bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/gated_add.h"
#include "stepforge/kernels/grouped_product.h"
#include "stepforge/kernels/latent_heads.h"
#include "stepforge/kernels/lion.h"
#include "stepforge/kernels/reduce.h"
#include "stepforge/kernels/rms_norm.h"
#include "stepforge/kernels/rope.h"
#include "stepforge/kernels/router.h"
#include "stepforge/kernels/scalars.h"
#include "stepforge/kernels/swiglu.h"

namespace stepforge::reference {

decltype(stepforge::rms_norm_forward) rms_norm_forward;
decltype(stepforge::rms_norm_backward) rms_norm_backward;
decltype(stepforge::bias_forward) bias_forward;
decltype(stepforge::bias_backward) bias_backward;

/// All of swiglu.h. grad_weights and out: undefined without weights.
void gated_forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out);
void gated_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
                    const at::Tensor& grad_gate_up, const at::Tensor& grad_weights);

decltype(stepforge::dropout_add_forward) dropout_add_forward;
decltype(stepforge::dropout_add_backward) dropout_add_backward;
decltype(stepforge::qk_norm_rope_forward) qk_norm_rope_forward;
decltype(stepforge::qk_norm_rope_backward) qk_norm_rope_backward;
decltype(stepforge::latent_heads_forward) latent_heads_forward;
decltype(stepforge::latent_heads_backward) latent_heads_backward;
decltype(stepforge::attention_forward) attention_forward;
decltype(stepforge::attention_backward) attention_backward;
decltype(stepforge::attention_sink_gradient) attention_sink_gradient;
decltype(stepforge::attention_cached) attention_cached;

/// Computes the loss; with gradient.scale, `logits` are overwritten by their gradient.
void cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const LossGradient& gradient,
                   const at::Tensor& token_loss);

/// The same for logits of a part of the vocabulary, in three stages. Each row's largest logit, fp32; with that of all parts,
/// the sum of exp(logit - largest) and this part's share of the expected logit - largest, which is that of the label
/// without label smoothing; with the sums over all parts, the loss and the gradient. labels: int64; `terms`: fp64 [2, N].
void part_maxima(const at::Tensor& logits, const at::Tensor& largest);
void part_terms(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                const at::Tensor& largest, double smoothing, const at::Tensor& terms);
void part_losses(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                 const at::Tensor& largest, const at::Tensor& terms, const LossGradient& gradient,
                 const at::Tensor& token_loss);

decltype(stepforge::cap_logits) cap_logits;
decltype(stepforge::embedding_forward) embedding_forward;
decltype(stepforge::embedding_backward) embedding_backward;
decltype(stepforge::grouped_product) grouped_product;
decltype(stepforge::grouped_input_gradient) grouped_input_gradient;
decltype(stepforge::grouped_weight_gradient) grouped_weight_gradient;
decltype(stepforge::router_forward) router_forward;
decltype(stepforge::router_backward) router_backward;
void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);
void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);
decltype(stepforge::add_expert_bias) add_expert_bias;
decltype(stepforge::expert_bias_gradient) expert_bias_gradient;
decltype(stepforge::add_factor_gradients) add_factor_gradients;
decltype(stepforge::gated_add_forward) gated_add_forward;
decltype(stepforge::gated_add_backward) gated_add_backward;
decltype(stepforge::adamw_update) adamw_update;
decltype(stepforge::adamw_8bit_update) adamw_8bit_update;
decltype(stepforge::lion_update) lion_update;
decltype(stepforge::join_norm_terms) join_norm_terms;
decltype(stepforge::norm_of_terms) norm_of_terms;
decltype(stepforge::norm_terms_by_chunk) norm_terms_by_chunk;
decltype(stepforge::all_finite) all_finite;
decltype(stepforge::sum_in_order) sum_in_order;
decltype(stepforge::reciprocal_or_zero) reciprocal_or_zero;
decltype(stepforge::mean_in_order) mean_in_order;
decltype(stepforge::clip_coefficient) clip_coefficient;
decltype(stepforge::flag_if_finite) flag_if_finite;

}  // namespace stepforge::reference
