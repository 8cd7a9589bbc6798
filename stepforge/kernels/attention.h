// SPDX-License-Identifier: Apache-2.0
// Causal attention over packed documents, with grouped key-value heads.
//
// A row of qkv is [q heads | k heads | v heads], head_dim elements each, rope already applied. Query head h
// reads key-value head h / (heads / kv_heads). Within each document [cu_seqlens[i], cu_seqlens[i + 1]):
//   s[t, u] = scale * q[t] . k[u]  for u <= t
//   lse[t]  = log sum_u exp(s[t, u])
//   out[t]  = sum_u exp(s[t, u] - lse[t]) v[u]
// The matrix s is never materialized: it is computed block by block (Dao et al., "FlashAttention", 2022).
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace stepforge {

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;  ///< divides heads
  int64_t head_dim = 0;
  double scale = 1.0;  ///< usually 1 / sqrt(head_dim)

  int64_t group() const { return heads / kv_heads; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
};

/// qkv: [N, (H + 2K) d] and out: [N, H d], both fp32 or both bf16; lse: [N, H] fp32 (fp64 for fp64 qkv).
/// cu_seqlens: boundaries of the documents, from 0 to N, not decreasing. No autograd. A document's result
/// depends neither on the number of threads nor on other documents.
void attention_forward(const at::Tensor& qkv, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, const at::Tensor& out, const at::Tensor& lse);

/// grad_qkv: [N, (H + 2K) d], overwritten. qkv, out, lse: those of the forward pass.
void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv);

/// Generation: Tq new queries per row against a cache that already holds their own keys and values.
/// q, out: [B, Tq, H d]; k_cache, v_cache: [B, max_len, K, d], all of the same type. Query t of row b sees
/// cache entries [0, past_lengths[b] + t]; past_lengths[b] + Tq <= max_len.
void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out);

void attention_forward_reference(const at::Tensor& qkv, const AttentionShape& shape,
                                 std::span<const int32_t> cu_seqlens, const at::Tensor& out,
                                 const at::Tensor& lse);
void attention_backward_reference(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const AttentionShape& shape,
                                  std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv);
void attention_cached_reference(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                                std::span<const int64_t> past_lengths, const AttentionShape& shape,
                                const at::Tensor& out);

}  // namespace stepforge
