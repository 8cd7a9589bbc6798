// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_attention_shape(const AttentionShape& shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || shape.value_dim < 0 ||
      shape.heads % shape.kv_heads != 0) {
    throw Error(
        format("attention: heads = {}, kv_heads = {}, head_dim = {}: "
               "all must be positive and kv_heads must divide heads",
               shape.heads, shape.kv_heads, shape.head_dim));
  }
  if (shape.window < 0) throw Error(format("attention: window = {}: must not be negative", shape.window));
  if (!(shape.cap >= 0)) throw Error(format("attention: cap = {}: must not be negative", shape.cap));
}

/// Rows of heads in adjacent columns, `width` in all.
void check_heads(const at::Tensor& tensor, const char* name, int64_t rows, int64_t width,
                 at::ScalarType type) {
  if (tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == width && tensor.stride(1) == 1 &&
      tensor.scalar_type() == type) {
    return;
  }
  throw Error(format("attention: {} must be [{}, {}] of type {} with adjacent columns", name, rows, width,
                     c10::toString(type)));
}

void check_inputs(const QueryKeyValue& tensors, const char* names, const QueryKeyValue& like,
                  const AttentionShape& shape) {
  const at::ScalarType type = like.q.scalar_type();
  check_heads(tensors.q, format("{}q", names).c_str(), like.q.size(0), shape.q_width(), type);
  check_heads(tensors.k, format("{}k", names).c_str(), like.k.size(0), shape.k_width(), type);
  check_heads(tensors.v, format("{}v", names).c_str(), like.k.size(0), shape.v_width(), type);
}

void check_ranges(std::span<const AttentionRange> ranges, const QueryKeyValue& inputs,
                  const AttentionShape& shape) {
  int64_t keys_end = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const AttentionRange& range = ranges[i];
    const bool same_document = i > 0 && range.key_begin == ranges[i - 1].key_begin;
    const bool in_order =
        same_document ? range.keys == ranges[i - 1].keys : range.key_begin >= keys_end && range.keys >= 1;
    if (range.queries < 0 || range.query_begin < 0 || range.query_begin + range.queries > inputs.q.size(0) ||
        range.past < 0 || range.seen() > range.keys || !in_order ||
        (range.queries > 0 && range.seen() == 0) || range.key_begin + range.keys > inputs.k.size(0)) {
      throw Error(format(
          "attention: range {}: queries [{}, {}) of {} after {} of the keys [{}, {}) of {} is not valid", i,
          range.query_begin, range.query_begin + range.queries, inputs.q.size(0), range.past, range.key_begin,
          range.key_begin + range.keys, inputs.k.size(0)));
    }
    if (shape.window > 0 && !range.causal) {
      throw Error(
          format("attention: range {} holds keys whose distance from its queries is unknown, "
                 "so a window of {} cannot be applied; gather the keys or exchange heads instead of a ring",
                 i, shape.window));
    }
    keys_end = range.key_begin + range.keys;
  }
}

/// [rows, heads dim] to [heads, rows, dim] of the compute type.
at::Tensor heads_first(const at::Tensor& rows, int64_t dim) {
  return rows.to(compute_type(rows)).reshape({rows.size(0), -1, dim}).transpose(0, 1);
}

/// Queries, keys and values of a range, heads first; key-value heads repeated for each query head of their
/// group.
QueryKeyValue range_heads(const QueryKeyValue& inputs, const AttentionRange& range,
                          const AttentionShape& shape) {
  const auto keys = [&](const at::Tensor& tensor, int64_t dim) {
    return heads_first(tensor.narrow(0, range.key_begin, range.keys), dim)
        .repeat_interleave(shape.group(), 0);
  };
  return {heads_first(inputs.q.narrow(0, range.query_begin, range.queries), shape.head_dim),
          keys(inputs.k, shape.head_dim), keys(inputs.v, shape.value_size())};
}

/// scale * q k^T [.., queries, keys], before the cap.
at::Tensor raw_scores(const at::Tensor& q, const at::Tensor& k, const AttentionShape& shape) {
  return at::matmul(q, k.transpose(-1, -2)) * shape.scale;
}

at::Tensor capped(const at::Tensor& raw, const AttentionShape& shape) {
  return shape.cap > 0 ? (raw / shape.cap).tanh() * shape.cap : raw;
}

/// The derivative of capped().
at::Tensor slope_of_cap(const at::Tensor& raw, const AttentionShape& shape) {
  return 1 - (raw / shape.cap).tanh().square();
}

/// Scores [.., queries, keys], -infinity at keys that a query does not see; query t is at position past + t.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, const AttentionShape& shape,
                         int64_t past) {
  const auto options = at::TensorOptions().device(q.device()).dtype(at::kLong);
  const at::Tensor rows = at::arange(q.size(-2), options).add(past).unsqueeze(1);
  const at::Tensor columns = at::arange(k.size(-2), options).unsqueeze(0);
  at::Tensor hidden = columns.gt(rows);
  if (shape.window > 0) hidden = hidden.logical_or(columns.le(rows - shape.window));
  return capped(raw_scores(q, k, shape), shape).masked_fill(hidden, -INFINITY);
}

/// The same for keys that the queries of a range do not see.
at::Tensor range_scores(const QueryKeyValue& heads, const AttentionShape& shape,
                        const AttentionRange& range) {
  if (range.causal) return masked_scores(heads.q, heads.k, shape, range.past);
  at::Tensor scores = capped(raw_scores(heads.q, heads.k, shape), shape);
  scores.narrow(-1, range.past, range.keys - range.past).fill_(-INFINITY);
  return scores;
}

void check_sinks(const at::Tensor& sinks, const AttentionShape& shape, at::ScalarType type) {
  if (sinks.defined()) check_tensor(sinks, "attention sinks", {shape.heads}, type);
}

/// log sum_u exp(score), with the sinks [H] if there are any. scores: [H, queries, keys].
at::Tensor log_sums(const at::Tensor& scores, const at::Tensor& sinks) {
  const at::Tensor log_sum = at::logsumexp(scores, {-1});
  return sinks.defined() ? at::logaddexp(log_sum, sinks.unsqueeze(-1)) : log_sum;
}

}  // namespace

QueryKeyValue split_qkv(const at::Tensor& qkv, const AttentionShape& shape) {
  check_shape(qkv, "attention qkv", {qkv.size(0), shape.qkv_width()});
  const int64_t q = shape.q_width();
  const int64_t k = shape.k_width();
  return {qkv.narrow(1, 0, q), qkv.narrow(1, q, k), qkv.narrow(1, q + k, shape.v_width())};
}

std::vector<AttentionRange> document_ranges(std::span<const int32_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0)
    throw Error("attention: document boundaries must begin with 0");
  std::vector<AttentionRange> ranges;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i - 1];
    const int64_t length = cu_seqlens[i] - begin;
    if (length < 0) {
      throw Error(format("attention: document boundaries must not decrease: {} follows {}", cu_seqlens[i],
                         cu_seqlens[i - 1]));
    }
    if (length > 0) ranges.push_back({begin, length, begin, length, 0});
  }
  return ranges;
}

void attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                       std::span<const AttentionRange> ranges, const at::Tensor& out, const at::Tensor& lse,
                       const at::Tensor& sinks) {
  check_attention_shape(shape);
  check_inputs(inputs, "", inputs, shape);
  check_ranges(ranges, inputs, shape);
  check_tensor(out, "attention out", {inputs.q.size(0), shape.out_width()}, inputs.q.scalar_type());
  check_tensor(lse, "attention lse", {inputs.q.size(0), shape.heads}, compute_type(inputs.q));
  check_sinks(sinks, shape, lse.scalar_type());
  if (has_cpu_kernel(inputs.q)) {
    cpu::attention_forward(inputs, shape, ranges, out, lse, sinks);
  } else {
    attention_forward_reference(inputs, shape, ranges, out, lse, sinks);
  }
}

void attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const AttentionRange> ranges, const QueryKeyValue& gradients) {
  check_attention_shape(shape);
  check_inputs(inputs, "", inputs, shape);
  check_ranges(ranges, inputs, shape);
  check_tensor(out, "attention out", {inputs.q.size(0), shape.out_width()}, inputs.q.scalar_type());
  check_tensor(grad_out, "attention grad_out", out.sizes(), inputs.q.scalar_type());
  check_tensor(lse, "attention lse", {inputs.q.size(0), shape.heads}, compute_type(inputs.q));
  check_inputs(gradients, "grad_", inputs, shape);
  if (has_cpu_kernel(inputs.q)) {
    cpu::attention_backward(grad_out, inputs, out, lse, shape, ranges, gradients);
  } else {
    attention_backward_reference(grad_out, inputs, out, lse, shape, ranges, gradients);
  }
}

void attention_sink_gradient(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse,
                             const at::Tensor& sinks, const AttentionShape& shape,
                             std::span<const AttentionRange> ranges, const at::Tensor& grad_sinks) {
  check_attention_shape(shape);
  check_tensor(out, "attention out", {out.size(0), shape.out_width()}, out.scalar_type());
  check_tensor(grad_out, "attention grad_out", out.sizes(), out.scalar_type());
  check_tensor(lse, "attention lse", {out.size(0), shape.heads}, compute_type(out));
  check_sinks(sinks, shape, lse.scalar_type());
  check_tensor(grad_sinks, "attention grad_sinks", sinks.sizes(), lse.scalar_type());
  if (has_cpu_kernel(out)) {
    cpu::attention_sink_gradient(grad_out, out, lse, sinks, shape, ranges, grad_sinks);
  } else {
    attention_sink_gradient_reference(grad_out, out, lse, sinks, shape, ranges, grad_sinks);
  }
}

void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out, const at::Tensor& sinks) {
  check_attention_shape(shape);
  check_shape(q, "attention_cached q", {q.size(0), q.size(1), shape.q_width()});
  check_tensor(k_cache, "attention_cached k_cache",
               {q.size(0), k_cache.size(1), shape.kv_heads, shape.head_dim}, q.scalar_type());
  check_tensor(v_cache, "attention_cached v_cache",
               {q.size(0), k_cache.size(1), shape.kv_heads, shape.value_size()}, q.scalar_type());
  check_tensor(out, "attention_cached out", {q.size(0), q.size(1), shape.out_width()}, q.scalar_type());
  if (static_cast<int64_t>(past_lengths.size()) != q.size(0)) {
    throw Error(format("attention_cached: {} past lengths for {} rows", past_lengths.size(), q.size(0)));
  }
  for (const int64_t past : past_lengths) {
    if (past < 0 || past > k_cache.size(1) - q.size(1)) {
      throw Error(format("attention_cached: {} past and {} new tokens do not fit into a cache of {}", past,
                         q.size(1), k_cache.size(1)));
    }
  }
  check_sinks(sinks, shape, compute_type(q));
  if (has_cpu_kernel(q)) {
    cpu::attention_cached(q, k_cache, v_cache, past_lengths, shape, out, sinks);
  } else {
    attention_cached_reference(q, k_cache, v_cache, past_lengths, shape, out, sinks);
  }
}

void attention_forward_reference(const QueryKeyValue& inputs, const AttentionShape& shape,
                                 std::span<const AttentionRange> ranges, const at::Tensor& out,
                                 const at::Tensor& lse, const at::Tensor& sinks) {
  for (const AttentionRange& range : ranges) {
    if (range.queries == 0) continue;
    const QueryKeyValue heads = range_heads(inputs, range, shape);
    const at::Tensor scores = range_scores(heads, shape, range);
    const at::Tensor log_sum = log_sums(scores, sinks);
    const at::Tensor mixed = at::matmul((scores - log_sum.unsqueeze(-1)).exp(), heads.v);
    out.narrow(0, range.query_begin, range.queries)
        .copy_(mixed.transpose(0, 1).reshape({range.queries, shape.out_width()}));
    lse.narrow(0, range.query_begin, range.queries).copy_(log_sum.transpose(0, 1));
  }
}

void attention_backward_reference(const at::Tensor& grad_out, const QueryKeyValue& inputs,
                                  const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                                  std::span<const AttentionRange> ranges, const QueryKeyValue& gradients) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const AttentionRange& range = ranges[i];
    // [H, keys, d] gradients of repeated heads are added to [keys, K d].
    const auto add_keys = [&](const at::Tensor& to, const at::Tensor& gradient) {
      to.narrow(0, range.key_begin, range.keys)
          .add_(gradient.view({shape.kv_heads, shape.group(), range.keys, -1})
                    .sum(1)
                    .transpose(0, 1)
                    .reshape({range.keys, -1}));
    };
    if (i == 0 || range.key_begin != ranges[i - 1].key_begin) {
      gradients.k.narrow(0, range.key_begin, range.keys).zero_();
      gradients.v.narrow(0, range.key_begin, range.keys).zero_();
    }
    if (range.queries == 0) continue;
    const auto queries = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, range.query_begin, range.queries);
    };
    const QueryKeyValue heads = range_heads(inputs, range, shape);
    const at::Tensor log_sum = queries(lse).transpose(0, 1).unsqueeze(-1);
    const at::Tensor probability = (range_scores(heads, shape, range) - log_sum).exp();
    const at::Tensor grad = heads_first(queries(grad_out), shape.value_size());
    const at::Tensor delta = (grad * heads_first(queries(out), shape.value_size())).sum(-1, /*keepdim=*/true);
    at::Tensor grad_scores =
        probability * (at::matmul(grad, heads.v.transpose(-1, -2)) - delta) * shape.scale;
    if (shape.cap > 0) grad_scores *= slope_of_cap(raw_scores(heads.q, heads.k, shape), shape);
    queries(gradients.q)
        .copy_(at::matmul(grad_scores, heads.k).transpose(0, 1).reshape({range.queries, shape.q_width()}));
    add_keys(gradients.k, at::matmul(grad_scores.transpose(-1, -2), heads.q));
    add_keys(gradients.v, at::matmul(probability.transpose(-1, -2), grad));
  }
}

void attention_sink_gradient_reference(const at::Tensor& grad_out, const at::Tensor& out,
                                       const at::Tensor& lse, const at::Tensor& sinks,
                                       const AttentionShape& shape, std::span<const AttentionRange> ranges,
                                       const at::Tensor& grad_sinks) {
  grad_sinks.zero_();
  for (const AttentionRange& range : ranges) {
    const auto heads = [&](const at::Tensor& tensor) {
      return heads_first(tensor.narrow(0, range.query_begin, range.queries), shape.value_size());
    };
    const at::Tensor log_sum = lse.narrow(0, range.query_begin, range.queries).transpose(0, 1);
    const at::Tensor share = (sinks.unsqueeze(-1) - log_sum).exp();
    grad_sinks.sub_((share * (heads(grad_out) * heads(out)).sum(-1)).sum(-1));
  }
}

void attention_cached_reference(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                                std::span<const int64_t> past_lengths, const AttentionShape& shape,
                                const at::Tensor& out, const at::Tensor& sinks) {
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
    const at::Tensor scores = masked_scores(queries, entries(k_cache), shape, past);
    const at::Tensor probability = (scores - log_sums(scores, sinks).unsqueeze(-1)).exp();
    const at::Tensor mixed = at::matmul(probability, entries(v_cache));
    out[row].copy_(mixed.transpose(0, 1).reshape({q.size(1), shape.out_width()}));
  }
}

}  // namespace stepforge
