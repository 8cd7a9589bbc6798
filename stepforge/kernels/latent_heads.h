// SPDX-License-Identifier: Apache-2.0
// Heads of multi-head latent attention (arXiv:2405.04434, section 2.1): keys and values of all heads come from one
// low-rank latent of a token, and only the last R elements of a query or key know its position. Those of the key are the
// same in all heads. For head h of H, with d = P + R:
//
//   q row:  [P plain | R rotated] of each head       kv row: [P of the key | V of the value] of each head
//   out row: [q heads | k heads | v heads], where
//     q_h = [q plain | rotate(q rotated)]    k_h = [kv key | rotate(k_rotated)]    v_h = kv value
//   rotate(x)[2i] = x[2i] cos(t f_i) - x[2i+1] sin(t f_i)     rotate(x)[2i+1] = x[2i+1] cos(t f_i) + x[2i] sin(t f_i)
//
// Neighbours form a pair, as in DeepSeek's weights, not the halves of rope.h. The result is what attention.h reads.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/rope.h"

namespace stepforge {

/// q: [N, H d]; kv: [N, H (P + V)]; k_rotated: [N, R]; columns of each are adjacent, rows may be further apart. out:
/// [N, shape.qkv_width()], written; all of one type, fp32, bf16 or fp64. In `shape` kv_heads = heads, head_dim = d, value_dim
/// = V. positions: int32 [N], each inside the table, which is of R elements. No autograd.
void latent_heads_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rotated,
                          const AttentionShape& shape, const at::Tensor& positions, const RopeTable& table,
                          const at::Tensor& out);

/// grad_out: [N, shape.qkv_width()]. grad_q, grad_kv, grad_k_rotated: shaped like q, kv and k_rotated, written; the last is summed
/// over heads, in their order.
void latent_heads_backward(const at::Tensor& grad_out, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const at::Tensor& grad_q,
                           const at::Tensor& grad_kv, const at::Tensor& grad_k_rotated);

}  // namespace stepforge
