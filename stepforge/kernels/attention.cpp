// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_attention_shape(const AttentionShape& shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || shape.heads % shape.kv_heads != 0) {
    throw Error(format(
        "attention: heads = {}, kv_heads = {}, head_dim = {}: all must be positive and kv_heads must divide "
        "heads",
        shape.heads, shape.kv_heads, shape.head_dim));
  }
}

void check_boundaries(std::span<const int32_t> cu_seqlens, int64_t tokens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0 || cu_seqlens.back() != tokens) {
    throw Error(format(
        "attention: document boundaries must begin with 0 and end with the number of tokens, {}", tokens));
  }
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      throw Error(format("attention: document boundaries must not decrease: {} follows {}", cu_seqlens[i],
                         cu_seqlens[i - 1]));
    }
  }
}

/// Heads first, key-value heads repeated for each query head of their group.
struct HeadsFirst {
  at::Tensor q;  ///< [H, L, d]
  at::Tensor k;
  at::Tensor v;
};

HeadsFirst split_heads(const at::Tensor& rows, const AttentionShape& shape) {
  const at::Tensor heads =
      rows.to(compute_type(rows)).view({rows.size(0), -1, shape.head_dim}).transpose(0, 1);
  const int64_t h = shape.heads;
  const int64_t k = shape.kv_heads;
  return {heads.slice(0, 0, h), heads.slice(0, h, h + k).repeat_interleave(shape.group(), 0),
          heads.slice(0, h + k, h + 2 * k).repeat_interleave(shape.group(), 0)};
}

/// scale * q k^T [.., queries, keys], -infinity at keys after the query; query t is at position past + t.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, double scale, int64_t past) {
  const auto options = at::TensorOptions().device(q.device()).dtype(at::kLong);
  const at::Tensor rows = at::arange(q.size(-2), options).add(past).unsqueeze(1);
  const at::Tensor columns = at::arange(k.size(-2), options).unsqueeze(0);
  return (at::matmul(q, k.transpose(-1, -2)) * scale).masked_fill(columns.gt(rows), -INFINITY);
}

}  // namespace

void attention_forward(const at::Tensor& qkv, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, const at::Tensor& out, const at::Tensor& lse) {
  check_attention_shape(shape);
  check_shape(qkv, "attention qkv", {qkv.size(0), shape.qkv_width()});
  check_boundaries(cu_seqlens, qkv.size(0));
  check_tensor(out, "attention out", {qkv.size(0), shape.out_width()}, qkv.scalar_type());
  check_tensor(lse, "attention lse", {qkv.size(0), shape.heads}, compute_type(qkv));
  if (has_cpu_kernel(qkv)) {
    cpu::attention_forward(qkv, shape, cu_seqlens, out, lse);
  } else {
    attention_forward_reference(qkv, shape, cu_seqlens, out, lse);
  }
}

void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv) {
  check_attention_shape(shape);
  check_shape(qkv, "attention qkv", {qkv.size(0), shape.qkv_width()});
  check_boundaries(cu_seqlens, qkv.size(0));
  check_tensor(out, "attention out", {qkv.size(0), shape.out_width()}, qkv.scalar_type());
  check_tensor(grad_out, "attention grad_out", out.sizes(), qkv.scalar_type());
  check_tensor(lse, "attention lse", {qkv.size(0), shape.heads}, compute_type(qkv));
  check_tensor(grad_qkv, "attention grad_qkv", qkv.sizes(), qkv.scalar_type());
  if (has_cpu_kernel(qkv)) {
    cpu::attention_backward(grad_out, qkv, out, lse, shape, cu_seqlens, grad_qkv);
  } else {
    attention_backward_reference(grad_out, qkv, out, lse, shape, cu_seqlens, grad_qkv);
  }
}

void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out) {
  check_attention_shape(shape);
  check_shape(q, "attention_cached q", {q.size(0), q.size(1), shape.out_width()});
  check_tensor(k_cache, "attention_cached k_cache",
               {q.size(0), k_cache.size(1), shape.kv_heads, shape.head_dim}, q.scalar_type());
  check_tensor(v_cache, "attention_cached v_cache", k_cache.sizes(), q.scalar_type());
  check_tensor(out, "attention_cached out", q.sizes(), q.scalar_type());
  if (static_cast<int64_t>(past_lengths.size()) != q.size(0)) {
    throw Error(format("attention_cached: {} past lengths for {} rows", past_lengths.size(), q.size(0)));
  }
  for (const int64_t past : past_lengths) {
    if (past < 0 || past > k_cache.size(1) - q.size(1)) {
      throw Error(format("attention_cached: {} past and {} new tokens do not fit into a cache of {}", past,
                         q.size(1), k_cache.size(1)));
    }
  }
  if (has_cpu_kernel(q)) {
    cpu::attention_cached(q, k_cache, v_cache, past_lengths, shape, out);
  } else {
    attention_cached_reference(q, k_cache, v_cache, past_lengths, shape, out);
  }
}

void attention_forward_reference(const at::Tensor& qkv, const AttentionShape& shape,
                                 std::span<const int32_t> cu_seqlens, const at::Tensor& out,
                                 const at::Tensor& lse) {
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i - 1];
    const int64_t end = cu_seqlens[i];
    if (begin == end) continue;
    const HeadsFirst heads = split_heads(qkv.slice(0, begin, end), shape);
    const at::Tensor scores = masked_scores(heads.q, heads.k, shape.scale, 0);
    const at::Tensor log_sum = at::logsumexp(scores, {-1});
    const at::Tensor mixed = at::matmul((scores - log_sum.unsqueeze(-1)).exp(), heads.v);
    out.slice(0, begin, end).copy_(mixed.transpose(0, 1).reshape({end - begin, shape.out_width()}));
    lse.slice(0, begin, end).copy_(log_sum.transpose(0, 1));
  }
}

void attention_backward_reference(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const AttentionShape& shape,
                                  std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv) {
  const at::ScalarType type = compute_type(qkv);
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i - 1];
    const int64_t end = cu_seqlens[i];
    if (begin == end) continue;
    const auto heads_first = [&](const at::Tensor& tensor) {
      return tensor.slice(0, begin, end)
          .to(type)
          .view({end - begin, shape.heads, shape.head_dim})
          .transpose(0, 1);
    };
    // [H, L, d] gradients of repeated heads back to [L, K d]
    const auto sum_group = [&](const at::Tensor& grad) {
      return grad.view({shape.kv_heads, shape.group(), end - begin, shape.head_dim})
          .sum(1)
          .transpose(0, 1)
          .reshape({end - begin, shape.kv_heads * shape.head_dim});
    };
    const HeadsFirst heads = split_heads(qkv.slice(0, begin, end), shape);
    const at::Tensor log_sum = lse.slice(0, begin, end).transpose(0, 1).unsqueeze(-1);
    const at::Tensor probability = (masked_scores(heads.q, heads.k, shape.scale, 0) - log_sum).exp();
    const at::Tensor grad = heads_first(grad_out);
    const at::Tensor delta = (grad * heads_first(out)).sum(-1, /*keepdim=*/true);
    const at::Tensor grad_scores =
        probability * (at::matmul(grad, heads.v.transpose(-1, -2)) - delta) * shape.scale;
    const at::Tensor grad_q =
        at::matmul(grad_scores, heads.k).transpose(0, 1).reshape({end - begin, shape.out_width()});
    const at::Tensor grad_k = at::matmul(grad_scores.transpose(-1, -2), heads.q);
    const at::Tensor grad_v = at::matmul(probability.transpose(-1, -2), grad);
    grad_qkv.slice(0, begin, end).copy_(at::cat({grad_q, sum_group(grad_k), sum_group(grad_v)}, -1));
  }
}

void attention_cached_reference(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                                std::span<const int64_t> past_lengths, const AttentionShape& shape,
                                const at::Tensor& out) {
  const at::ScalarType type = compute_type(q);
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t past = past_lengths[static_cast<size_t>(row)];
    const auto entries = [&](const at::Tensor& cache) {
      return cache[row]
          .slice(0, 0, past + q.size(1))
          .to(type)
          .transpose(0, 1)
          .repeat_interleave(shape.group(), 0);
    };
    const at::Tensor queries = q[row].to(type).view({q.size(1), shape.heads, shape.head_dim}).transpose(0, 1);
    const at::Tensor scores = masked_scores(queries, entries(k_cache), shape.scale, past);
    const at::Tensor mixed = at::matmul(scores.softmax(-1), entries(v_cache));
    out[row].copy_(mixed.transpose(0, 1).reshape({q.size(1), shape.out_width()}));
  }
}

}  // namespace stepforge
