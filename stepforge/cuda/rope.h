// SPDX-License-Identifier: Apache-2.0
// kernels/rope.h on a GPU: rotary embedding on packed q, k, v, with an optional RMS norm of q and k before it.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/column_sums.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// What both directions have in common. Rows of qkv are [q heads | k heads | v heads]. All pointers are to device memory.
struct QkRotation {
  DType type = DType::f32;  ///< of qkv: fp32 or bf16
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;                ///< even
  const int32_t* positions = nullptr;  ///< [tokens], each a row of the tables: nothing checks it
  const float* cos = nullptr;          ///< [positions, head_dim / 2]
  const float* sin = nullptr;
  // The norm; the weights are null without one.
  const void* q_weight = nullptr;  ///< [q_span * head_dim]
  const void* k_weight = nullptr;  ///< [k_span * head_dim]
  DType weight_type = DType::f32;  ///< fp32, or `type`
  int64_t q_span = 1;              ///< query heads that are normed together: 1 or all
  int64_t k_span = 1;
  double eps = 1e-6;
  double offset = 0.0;  ///< added to weights

  constexpr bool has_norm() const { return q_weight != nullptr; }
  constexpr int64_t row_width() const { return (heads + 2 * kv_heads) * head_dim; }
  constexpr int64_t weight_width() const { return (q_span + k_span) * head_dim; }
};

/// Warps of a block of the backward pass, which sum gradients of weights each for themselves.
constexpr int kRopeWarps = 8;

/// Elements of the workspace of qk_norm_rope_backward() with a norm.
inline int64_t rope_workspace_of(const QkRotation& rotation) {
  return workspace_of(rotation.tokens, kRopeWarps * rotation.weight_width());
}

/// qkv, out: [tokens, row_width]; may be the same memory. rstd: [tokens, heads / q_span + kv_heads / k_span], written if there is a norm.
void qk_norm_rope_forward(const QkRotation& rotation, const void* qkv, void* out, float* rstd, Stream stream);

/// grad_qkv: on entry the gradient of `out`, on return that of qkv. The others only with a norm: qkv: the input of the forward pass;
/// rstd: its output; grad_q_weight, grad_k_weight: of the sizes of the weights, written; workspace: above.
void qk_norm_rope_backward(const QkRotation& rotation, void* grad_qkv, const void* qkv, const float* rstd,
                           float* grad_q_weight, float* grad_k_weight, float* workspace, Stream stream);

}  // namespace stepforge::cuda
