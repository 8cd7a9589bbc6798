// SPDX-License-Identifier: Apache-2.0
// The fused kernels for CPU tensors. Arguments are those of the operation's own header one folder up, whose
// public function has checked them: contiguous, matching shapes, activations all fp32 or all bf16.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"
#include "stepforge/kernels/adamw_8bit.h"
#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/clamped_swiglu.h"
#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/dropout_add.h"
#include "stepforge/kernels/expert_bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/lion.h"
#include "stepforge/kernels/reduce.h"
#include "stepforge/kernels/rope.h"
#include "stepforge/kernels/router.h"
#include "stepforge/modelspec/layer_traits.h"

namespace stepforge::cpu {

void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out,
                      const at::Tensor& rstd, double offset);
void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& residual_grad, const at::Tensor& grad_x,
                       const at::Tensor& grad_weight, double offset);

void bias_forward(const at::Tensor& x, const at::Tensor& bias);
void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias);

void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out, Activation activation);
void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
                     Activation activation);

void dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                         const TokenCoords& coords, const at::Tensor& out);
void dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key, const TokenCoords& coords,
                          const at::Tensor& grad_x);

void qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                          const RopeTable& table, const QkNorm& norm, const at::Tensor& out,
                          const at::Tensor& rstd);
void qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                           const at::Tensor& rstd, const at::Tensor& grad_q_weight,
                           const at::Tensor& grad_k_weight);

void latent_heads_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rotated,
                          const AttentionShape& shape, const at::Tensor& positions, const RopeTable& table,
                          const at::Tensor& out);
void latent_heads_backward(const at::Tensor& grad_out, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const at::Tensor& grad_kv,
                           const at::Tensor& grad_k_rotated);

void attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                       std::span<const AttentionRange> ranges, const at::Tensor& out, const at::Tensor& lse,
                       const at::Tensor& sinks);
void attention_sink_gradient(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse,
                             const at::Tensor& sinks, const AttentionShape& shape,
                             std::span<const AttentionRange> ranges, const at::Tensor& grad_sinks);
void attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const AttentionRange> ranges, const QueryKeyValue& gradients);
void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out, const at::Tensor& sinks);

/// LossGradient for a kernel, which reads the scale when it runs; null without gradients.
struct LogitsGradient {
  const double* scale = nullptr;
  double z_weight = 0.0;
  const float* weights = nullptr;  ///< of each row; null if all are 1
  double cap = 0.0;                ///< LossGradient::cap
  double smoothing = 0.0;          ///< LossGradient::smoothing; changes the loss too
};

/// Computes the loss; with a scale, `logits` are overwritten by their gradient.
void cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const LogitsGradient& gradient,
                   const at::Tensor& token_loss);

/// The same for logits of a part of the vocabulary, in three stages. Each row's largest logit; with that of
/// all parts, the sum of exp(logit - largest) and this part's share of the expected logit - largest, which is that of the
/// label without label smoothing; with the sums over all parts, the loss and the gradient. labels: int64; `terms`: fp64
/// [2, N].
void part_maxima(const at::Tensor& logits, const at::Tensor& largest);
void part_terms(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                const at::Tensor& largest, double smoothing, const at::Tensor& terms);
void part_losses(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                 const at::Tensor& largest, const at::Tensor& terms, const LogitsGradient& gradient,
                 const at::Tensor& token_loss);

void cap_logits(const at::Tensor& logits, double cap);

void embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out,
                       const VocabularyPart& part, double factor);
void embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out, const at::Tensor& grad_weight,
                        bool accumulate, const VocabularyPart& part, double factor);

/// `weights` may be transposed in its last two dimensions.
void grouped_product(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out);
void grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                             std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                             bool accumulate);

/// balance_factors: [rows, E] fp32, the gradient of the balance loss for prob; undefined without losses.
void router_forward(const at::Tensor& logits, const at::Tensor& correction, const at::Tensor& token_weights,
                    const RouterOptions& options, const at::Tensor& indices, const at::Tensor& weights,
                    const at::Tensor& row_sums);
void router_backward(const at::Tensor& grad_weights, const at::Tensor& logits, const at::Tensor& indices,
                     const at::Tensor& token_weights, const at::Tensor& balance_factors,
                     const RouterOptions& options, const RouterLossGradient& gradient,
                     const at::Tensor& grad_logits);

void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);
void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

void expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                           const at::Tensor& out);
void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& grad_gate_up,
                            const at::Tensor& grad_weights, const at::Tensor& out);

void clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                            const ClampedSwiglu& activation, const at::Tensor& out);
void clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                             const at::Tensor& slots, const ClampedSwiglu& activation,
                             const at::Tensor& grad_gate_up, const at::Tensor& grad_weights,
                             const at::Tensor& out);

void add_expert_bias(const at::Tensor& rows, std::span<const int64_t> offsets, const at::Tensor& bias,
                     const RowFactors& factors);
void expert_bias_gradient(const at::Tensor& grad, std::span<const int64_t> offsets, const RowFactors& factors,
                          const at::Tensor& grad_bias);
void add_factor_gradients(const at::Tensor& grad, std::span<const int64_t> offsets, const at::Tensor& bias,
                          const at::Tensor& slots, const at::Tensor& grad_weights);

void gated_add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                       const at::Tensor& out);
void gated_add_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                        const at::Tensor& grad_y, const at::Tensor& grad_gate);

/// fp32; the moments fp32 or bf16.
void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWOptions& options,
                  const UpdateScalars& scalars);
void adamw_8bit_update(const at::Tensor& parameter, const at::Tensor& grad, const QuantizedMoment& first,
                       const QuantizedMoment& second, const AdamWOptions& options,
                       const UpdateScalars& scalars);
void lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const LionOptions& options, const UpdateScalars& scalars);

void join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined);
void norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm);
void norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials);
bool all_finite(const at::Tensor& flat);
void sum_in_order(const at::Tensor& flat, const at::Tensor& total);

void reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight);
void mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean);
void clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient);
void flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag);

/// The last step of sums over tokens:
/// target[c] = sum of partials[r * stride + c] over r, in the order of r.
void reduce_rows(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target);

}  // namespace stepforge::cpu
