// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding on packed q, k, v, with an optional RMS norm of q and k before it, of each head or of all.
//
// A row of qkv is [q heads | k heads | v heads], head_dim elements each. For a head x at position t and
// i < d/2, where d = head_dim:
//   y          = x * rstd * (offset + weight)   (only with a norm; rstd is over the head, or over all heads of q or
//                                                k; these have a weight each)
//   out[i]     = y[i] cos(t f_i) - y[i + d/2] sin(t f_i)
//   out[i+d/2] = y[i + d/2] cos(t f_i) + y[i] sin(t f_i)
// This is the "rotate half" pairing of Hugging Face's Llama. v is copied.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/attention.h"
#include "stepforge/modelspec/rope_spec.h"

namespace stepforge {

/// Cosines and sines, with yarn and longrope times the attention factor, both fp32 [max_position, head_dim / 2] on the
/// device of the activations.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

/// The fp32 frequencies [head_dim / 2], by the same fp32 operations as transformers (modeling_rope_utils.py:
/// compute_default_rope_parameters of a model, _compute_linear_scaling_rope_parameters, _compute_llama3_parameters,
/// _compute_yarn_parameters, _compute_longrope_parameters), hence the same bits.
at::Tensor rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

/// Angles are fp32(position) * fp32(frequency), as in transformers; computed on the CPU for every device, so the bits are the
/// same.
RopeTable make_rope_table(int64_t max_position, int64_t head_dim, double theta, const RopeScaling& scaling,
                          at::Device device = at::kCPU);

/// The optional norm of q and k; both weights undefined when the model has none. Weights [head_dim] norm each head,
/// weights [H d] and [K d] all heads together.
struct QkNorm {
  at::Tensor q_weight;
  at::Tensor k_weight;
  double eps = 1e-6;
  double offset = 0.0;  ///< as in rms_norm.h

  bool present() const { return q_weight.defined(); }
  /// Heads that are normed together.
  int64_t q_span(const AttentionShape& shape) const { return q_weight.numel() / shape.head_dim; }
  int64_t k_span(const AttentionShape& shape) const { return k_weight.numel() / shape.head_dim; }
  /// Norms per token.
  int64_t count(const AttentionShape& shape) const {
    return shape.heads / q_span(shape) + shape.kv_heads / k_span(shape);
  }
};

/// qkv, out: [N, (H + 2K) d] fp32 or bf16; may be the same memory, but with a norm backward needs the
/// original qkv. positions: int32 [N], each in [0, max_position). rstd: [N, norm.count()] fp32: H + K, or
/// 2 if heads are normed together; written if there is a norm, otherwise it may be undefined.
void qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                          const RopeTable& table, const QkNorm& norm, const at::Tensor& out,
                          const at::Tensor& rstd);

/// grad_qkv: [N, (H + 2K) d]; on entry the gradient of `out`, on return that of `qkv`. With a norm, qkv is
/// the input of the forward pass, rstd its output, and grad_q_weight, grad_k_weight (fp32, of the
/// sizes of the weights) are written, summed in one fixed order. Without a norm these four may be undefined.
void qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                           const at::Tensor& rstd, const at::Tensor& grad_q_weight,
                           const at::Tensor& grad_k_weight);

}  // namespace stepforge
