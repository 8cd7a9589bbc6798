// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/attention.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
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

/// The reverse.
at::Tensor rows_first(const at::Tensor& heads) {
  return heads.transpose(0, 1).reshape({heads.size(1), -1});
}

/// [H, queries, n] to [K, queries of all heads of a group, n], which are multiplied with one key-value head.
at::Tensor by_group(const at::Tensor& heads, const AttentionShape& shape) {
  return heads.reshape({shape.kv_heads, -1, heads.size(-1)});
}

/// a [H, queries, n] times, for each head, that of its group in b [K, n, m].
at::Tensor group_product(const at::Tensor& a, const at::Tensor& b, const AttentionShape& shape) {
  return at::matmul(by_group(a, shape), b).view({a.size(0), a.size(1), -1});
}

/// The scores [H, queries, keys] of some queries: query t is at position past + t.
struct Scores {
  at::Tensor capped;  ///< -infinity at keys that a query does not see
  at::Tensor slope;   ///< the derivative of the cap; undefined without one

  /// q: [H, queries, d]; k: [K, keys, d]. If not `causal`, all queries see all keys.
  Scores(const at::Tensor& q, const at::Tensor& k, const AttentionShape& shape, int64_t past, bool causal) {
    capped = group_product(q, k.transpose(1, 2), shape) * shape.scale;
    if (shape.cap > 0) {
      const at::Tensor tanh = (capped / shape.cap).tanh();
      slope = 1 - tanh.square();
      capped = tanh * shape.cap;
    }
    if (!causal) return;
    const auto options = at::TensorOptions().device(q.device()).dtype(at::kLong);
    const at::Tensor rows = at::arange(q.size(1), options).add(past).unsqueeze(1);
    const at::Tensor columns = at::arange(k.size(1), options).unsqueeze(0);
    at::Tensor hidden = columns.gt(rows);
    if (shape.window > 0) hidden = hidden.logical_or(columns.le(rows - shape.window));
    capped.masked_fill_(hidden, -INFINITY);
  }
};

/// A range cut into blocks of queries whose scores take 64 MiB each. They have the keys that some query sees: those after the
/// last query and before the window are left out.
std::vector<AttentionRange> query_blocks(const AttentionRange& range, const AttentionShape& shape) {
  constexpr int64_t kScores = int64_t{1} << 24;
  const int64_t rows = std::max<int64_t>(1, kScores / (shape.heads * range.keys));
  std::vector<AttentionRange> blocks;
  for (int64_t begin = 0; begin < range.queries; begin += rows) {
    AttentionRange block = range;
    block.query_begin += begin;
    block.queries = std::min(rows, range.queries - begin);
    if (range.causal) block.past += begin;
    const int64_t unseen = shape.window > 0 ? std::max<int64_t>(0, block.past - shape.window + 1) : 0;
    block.key_begin += unseen;
    block.past -= unseen;
    block.keys = block.seen();
    blocks.push_back(block);
  }
  return blocks;
}

/// The parts of tensors that belong to a block.
at::Tensor queries_of(const at::Tensor& rows, const AttentionRange& block) {
  return rows.narrow(0, block.query_begin, block.queries);
}
at::Tensor keys_of(const at::Tensor& rows, const AttentionRange& block) {
  return rows.narrow(0, block.key_begin, block.keys);
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
  pick(&KernelTable::attention_forward, inputs.q)(inputs, shape, ranges, out, lse, sinks);
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
  pick(&KernelTable::attention_backward, inputs.q)(grad_out, inputs, out, lse, shape, ranges, gradients);
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
  pick(&KernelTable::attention_sink_gradient, out)(grad_out, out, lse, sinks, shape, ranges, grad_sinks);
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
  pick(&KernelTable::attention_cached, q)(q, k_cache, v_cache, past_lengths, shape, out, sinks);
}

void reference::attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                                  std::span<const AttentionRange> ranges, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& sinks) {
  for (const AttentionRange& range : ranges) {
    for (const AttentionRange& block : query_blocks(range, shape)) {
      const at::Tensor q = heads_first(queries_of(inputs.q, block), shape.head_dim);
      const at::Tensor k = heads_first(keys_of(inputs.k, block), shape.head_dim);
      const at::Tensor v = heads_first(keys_of(inputs.v, block), shape.value_size());
      const Scores scores(q, k, shape, block.past, block.causal);
      const at::Tensor log_sum = log_sums(scores.capped, sinks);
      const at::Tensor probability = (scores.capped - log_sum.unsqueeze(-1)).exp();
      queries_of(out, block).copy_(rows_first(group_product(probability, v, shape)));
      queries_of(lse, block).copy_(log_sum.transpose(0, 1));
    }
  }
}

void reference::attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs,
                                   const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                                   std::span<const AttentionRange> ranges, const QueryKeyValue& gradients) {
  for (size_t i = 0; i < ranges.size();) {
    const AttentionRange& document = ranges[i];
    const auto wide_zeros = [&](const at::Tensor& rows) {
      return at::zeros_like(keys_of(rows, document), compute_type(rows), at::MemoryFormat::Contiguous);
    };
    const at::Tensor grad_k = wide_zeros(gradients.k);
    const at::Tensor grad_v = wide_zeros(gradients.v);
    for (; i < ranges.size() && ranges[i].key_begin == document.key_begin; ++i) {
      for (const AttentionRange& block : query_blocks(ranges[i], shape)) {
        const at::Tensor q = heads_first(queries_of(inputs.q, block), shape.head_dim);
        const at::Tensor k = heads_first(keys_of(inputs.k, block), shape.head_dim);
        const at::Tensor v = heads_first(keys_of(inputs.v, block), shape.value_size());
        const at::Tensor grad = heads_first(queries_of(grad_out, block), shape.value_size());
        const at::Tensor result = heads_first(queries_of(out, block), shape.value_size());
        const Scores scores(q, k, shape, block.past, block.causal);
        const at::Tensor log_sum = queries_of(lse, block).transpose(0, 1).unsqueeze(-1);
        const at::Tensor probability = (scores.capped - log_sum).exp();
        const at::Tensor delta = (grad * result).sum(-1, /*keepdim=*/true);
        at::Tensor grad_scores =
            probability * (group_product(grad, v.transpose(1, 2), shape) - delta) * shape.scale;
        if (shape.cap > 0) grad_scores *= scores.slope;
        queries_of(gradients.q, block).copy_(rows_first(group_product(grad_scores, k, shape)));
        const auto add = [&](const at::Tensor& to, const at::Tensor& of_scores, const at::Tensor& heads) {
          const at::Tensor sum =
              at::matmul(by_group(of_scores, shape).transpose(1, 2), by_group(heads, shape));
          to.narrow(0, block.key_begin - document.key_begin, block.keys).add_(rows_first(sum));
        };
        add(grad_k, grad_scores, q);
        add(grad_v, probability, grad);
      }
    }
    keys_of(gradients.k, document).copy_(grad_k);
    keys_of(gradients.v, document).copy_(grad_v);
  }
}

void reference::attention_sink_gradient(const at::Tensor& grad_out, const at::Tensor& out,
                                        const at::Tensor& lse, const at::Tensor& sinks,
                                        const AttentionShape& shape, std::span<const AttentionRange> ranges,
                                        const at::Tensor& grad_sinks) {
  grad_sinks.zero_();
  for (const AttentionRange& range : ranges) {
    const auto heads = [&](const at::Tensor& rows) {
      return heads_first(queries_of(rows, range), shape.value_size());
    };
    const at::Tensor share = (sinks.unsqueeze(-1) - queries_of(lse, range).transpose(0, 1)).exp();
    grad_sinks.sub_((share * (heads(grad_out) * heads(out)).sum(-1)).sum(-1));
  }
}

void reference::attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                                 std::span<const int64_t> past_lengths, const AttentionShape& shape,
                                 const at::Tensor& out, const at::Tensor& sinks) {
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t past = past_lengths[static_cast<size_t>(row)];
    const int64_t keys = past + q.size(1);
    const at::Tensor lse = at::empty({q.size(1), shape.heads}, q.options().dtype(compute_type(q)));
    const AttentionRange range{0, q.size(1), 0, keys, past};
    reference::attention_forward(
        {q[row], k_cache[row].slice(0, 0, keys).flatten(1), v_cache[row].slice(0, 0, keys).flatten(1)}, shape,
        std::span(&range, 1), out[row], lse, sinks);
  }
}

}  // namespace stepforge
