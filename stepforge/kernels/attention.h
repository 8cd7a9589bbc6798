// SPDX-License-Identifier: Apache-2.0
// Causal attention over packed documents, with grouped key-value heads.
//
// Query head h reads key-value head h / (heads / kv_heads); rope is already applied. Heads of q and k have d elements, those
// of v and of the result dv. Within each document:
//   s[t, u] = scale * q[t] . k[u]  for u <= t, with a window only for u > t - window; with a cap c then c tanh(s / c)
//   lse[t]  = log sum_u exp(s[t, u])
//   out[t]  = sum_u exp(s[t, u] - lse[t]) v[u]
// With sinks (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023; learned ones: OpenAI,
// "gpt-oss", 2025) each head has a further score for all queries, which is not capped and whose value is 0:
//   lse[t]  = log(exp(sink) + sum_u exp(s[t, u]))
// The matrix s is never materialized: it is computed block by block (Dao et al., "FlashAttention", 2022).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/attention_shape.h"

namespace stepforge {

/// [Nq, H d], [Nk, K d], [Nk, K dv], all fp32, bf16 or fp64. Columns are adjacent; rows may be further apart, so
/// these may be views of one packed tensor.
struct QueryKeyValue {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

/// Views of rows [q heads | k heads | v heads] of qkv [N, (H + K) d + K dv].
QueryKeyValue split_qkv(const at::Tensor& qkv, const AttentionShape& shape);

/// Some queries of a document, rows of q, and keys of it, rows of k and v. Query t sees the keys [0, past + t];
/// if not `causal`, the first `past` keys. With a window ranges must be causal.
struct AttentionRange {
  int64_t query_begin = 0;
  int64_t queries = 0;  ///< may be 0
  int64_t key_begin = 0;
  int64_t keys = 0;  ///< at least 1
  int64_t past = 0;  ///< past + queries <= keys; if not causal, 0 < past <= keys
  bool causal = true;

  /// The keys that some query sees.
  int64_t seen() const { return queries == 0 ? 0 : past + (causal ? queries : 0); }
};

/// The ranges if q, k and v have all tokens. cu_seqlens: boundaries of the documents, from 0 to their number,
/// not decreasing; otherwise throws Error.
std::vector<AttentionRange> document_ranges(std::span<const int32_t> cu_seqlens);

/// out: [Nq, H dv], as q; lse: [Nq, H] fp32 (fp64 for fp64 q). Ranges are in
/// ascending order of keys, those of one document adjacent; a query is in at most one of them, and the results
/// of one that is in none stay as they are. No autograd. The result of a query
/// depends neither on the number of threads nor on other queries and documents. sinks: [H], of the type of lse, or
/// undefined.
void attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                       std::span<const AttentionRange> ranges, const at::Tensor& out, const at::Tensor& lse,
                       const at::Tensor& sinks = {});

/// Overwrites the gradients of all queries and keys in the ranges; keys that no query sees get 0. inputs, out,
/// lse: those of the forward pass, which hold all that is needed to know of sinks.
void attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const AttentionRange> ranges, const QueryKeyValue& gradients);

/// The gradient of the sinks, [H] of the type of lse, written: - sum over the queries t in the ranges of
/// exp(sink - lse[t]) (grad_out[t] . out[t]).
void attention_sink_gradient(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse,
                             const at::Tensor& sinks, const AttentionShape& shape,
                             std::span<const AttentionRange> ranges, const at::Tensor& grad_sinks);

/// Generation: Tq new queries per row against a cache that already holds their own keys and values.
/// q: [B, Tq, H d]; out: [B, Tq, H dv]; k_cache: [B, max_len, K, d]; v_cache: [B, max_len, K, dv], all of the same type. Query t of row b sees
/// cache entries [0, past_lengths[b] + t], with a window the last of them; past_lengths[b] + Tq <= max_len.
void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out, const at::Tensor& sinks = {});

}  // namespace stepforge
