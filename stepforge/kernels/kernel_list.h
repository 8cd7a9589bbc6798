// SPDX-License-Identifier: Apache-2.0
// The list of kernels: one line for each, from which come the declarations of its implementations and its row in the table.
//
// `reference` has each in plain tensor operations, for any device and type of elements. `cpu` has the fused kernels for CPU
// tensors: contiguous, activations all fp32 or all bf16. Arguments are those of the operation's own header, whose public
// function has checked them.
#pragma once

#include <cstdint>

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
#include "stepforge/kernels/factor_codes.h"
#include "stepforge/kernels/gated_add.h"
#include "stepforge/kernels/grouped_product.h"
#include "stepforge/kernels/int8.h"
#include "stepforge/kernels/latent_heads.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/lion.h"
#include "stepforge/kernels/nf4.h"
#include "stepforge/kernels/reduce.h"
#include "stepforge/kernels/rms_norm.h"
#include "stepforge/kernels/rope.h"
#include "stepforge/kernels/router.h"
#include "stepforge/kernels/scalars.h"
#include "stepforge/kernels/swiglu.h"

/// ROW(name, types): a kernel with the signature of the public function of that name. types: a KernelTypes (kernel_table.h).
#define STEPFORGE_PUBLIC_KERNELS(ROW)         \
  ROW(rms_norm_forward, fp32_and_bf16)        \
  ROW(rms_norm_backward, fp32_and_bf16)       \
  ROW(bias_forward, fp32_and_bf16)            \
  ROW(bias_backward, fp32_and_bf16)           \
  ROW(dropout_add_forward, fp32_and_bf16)     \
  ROW(dropout_add_backward, fp32_and_bf16)    \
  ROW(qk_norm_rope_forward, fp32_and_bf16)    \
  ROW(qk_norm_rope_backward, fp32_and_bf16)   \
  ROW(latent_heads_forward, fp32_and_bf16)    \
  ROW(latent_heads_backward, fp32_and_bf16)   \
  ROW(attention_forward, fp32_and_bf16)       \
  ROW(attention_backward, fp32_and_bf16)      \
  ROW(attention_sink_gradient, fp32_and_bf16) \
  ROW(attention_cached, fp32_and_bf16)        \
  ROW(cap_logits, fp32_and_bf16)              \
  ROW(embedding_forward, fp32_and_bf16)       \
  ROW(embedding_backward, fp32_and_bf16)      \
  ROW(linear_product, fp32_and_bf16)          \
  ROW(linear_input_gradient, fp32_and_bf16)   \
  ROW(linear_weight_gradient, fp32_and_bf16)  \
  ROW(grouped_product, fp32_and_bf16)         \
  ROW(grouped_input_gradient, fp32_and_bf16)  \
  ROW(grouped_weight_gradient, fp32_and_bf16) \
  ROW(router_forward, fp32_and_bf16)          \
  ROW(router_backward, fp32_and_bf16)         \
  ROW(add_expert_bias, fp32_and_bf16)         \
  ROW(expert_bias_gradient, fp32_and_bf16)    \
  ROW(add_factor_gradients, fp32_and_bf16)    \
  ROW(gated_add_forward, fp32_and_bf16)       \
  ROW(gated_add_backward, fp32_and_bf16)      \
  ROW(dequantize_nf4, fp32_and_bf16)          \
  ROW(dequantize_int8, fp32_and_bf16)         \
  ROW(dequantize_factors, fp32)               \
  ROW(adamw_update, fp32)                     \
  ROW(adamw_8bit_update, checked)             \
  ROW(lion_update, fp32)                      \
  ROW(join_norm_terms, checked)               \
  ROW(norm_of_terms, checked)                 \
  ROW(norm_terms_by_chunk, checked)           \
  ROW(all_finite, checked)                    \
  ROW(sum_in_order, checked)                  \
  ROW(reciprocal_or_zero, checked)            \
  ROW(mean_in_order, checked)                 \
  ROW(clip_coefficient, checked)              \
  ROW(flag_if_finite, checked)

/// Kernels that several public functions share, or that are stages of one; their signatures are below.
#define STEPFORGE_SHARED_KERNELS(ROW) \
  ROW(gated_forward, fp32_and_bf16)   \
  ROW(gated_backward, fp32_and_bf16)  \
  ROW(cross_entropy, fp32_and_bf16)   \
  ROW(part_maxima, fp32_and_bf16)     \
  ROW(part_terms, fp32_and_bf16)      \
  ROW(part_losses, fp32_and_bf16)     \
  ROW(gather_rows, fp32_and_bf16)     \
  ROW(combine_rows, fp32_and_bf16)

#define STEPFORGE_KERNELS(ROW) STEPFORGE_PUBLIC_KERNELS(ROW) STEPFORGE_SHARED_KERNELS(ROW)

namespace stepforge::reference {

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name that is declared
#define STEPFORGE_DECLARE(name, types) decltype(stepforge::name) name;
STEPFORGE_PUBLIC_KERNELS(STEPFORGE_DECLARE)
#undef STEPFORGE_DECLARE

/// All of swiglu.h. grad_weights and out: undefined without weights.
void gated_forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out);
void gated_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
                    const at::Tensor& grad_gate_up, const at::Tensor& grad_weights);

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

/// Both of expert_rows.h.
void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);
void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

}  // namespace stepforge::reference

namespace stepforge::cpu {

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name that is declared
#define STEPFORGE_DECLARE(name, types) decltype(reference::name) name;
STEPFORGE_KERNELS(STEPFORGE_DECLARE)
#undef STEPFORGE_DECLARE

}  // namespace stepforge::cpu
