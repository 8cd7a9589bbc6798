// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/attention.h.
#include "stepforge/cuda/plugin/kernels_attention.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"
#include "stepforge/kernels/device_copy.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge::cuda_plugin {

namespace {

/// From the first of these rows to the last.
Rows all_of(const std::vector<Rows>& pieces) {
  return {pieces.front().begin, pieces.back().end() - pieces.front().begin};
}

at::Tensor rows_of(const at::Tensor& tensor, const Rows& rows) {
  return tensor.narrow(0, rows.begin, rows.count);
}

/// A view of rows [heads dim] as [heads, dim].
at::Tensor by_head(const at::Tensor& tensor, const Rows& rows, int64_t dim) {
  return rows_of(tensor, rows).unflatten(1, {-1, dim});
}

/// Writes or adds pieces of `to`; those of `from` begin with the first one.
void move_rows(const std::vector<Rows>& pieces, const at::Tensor& from, const at::Tensor& to,
               bool add = false) {
  for (const Rows& rows : pieces)
    write_or_add(rows_of(to, rows), rows_of(from, {rows.begin - pieces.front().begin, rows.count}), add);
}

/// The arguments of a pass that forward and backward share.
struct FlashCall {
  FlashCall(const FlashPass& pass, const QueryKeyValue& inputs, const AttentionShape& shape)
      : q(by_head(inputs.q, all_of(pass.queries), shape.head_dim)),
        k(by_head(inputs.k, all_of(pass.keys), shape.head_dim)),
        v(by_head(inputs.v, all_of(pass.keys), shape.head_dim)),
        longest_queries(std::max<int64_t>(2, pass.longest_queries)),
        longest_keys(pass.longest_keys) {
    if (shape.window > 0) window_left = shape.window - 1;
    const at::Tensor bounds = at::empty({2, pass.documents() + 1}, at::device(at::kCPU).dtype(at::kInt));
    std::copy(pass.query_bounds.begin(), pass.query_bounds.end(), bounds[0].mutable_data_ptr<int32_t>());
    std::copy(pass.key_bounds.begin(), pass.key_bounds.end(), bounds[1].mutable_data_ptr<int32_t>());
    const at::Tensor there = copy_to_device(bounds, q.device());
    query_bounds = there[0];
    key_bounds = there[1];
  }

  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor query_bounds;
  at::Tensor key_bounds;
  /// A bound, not 1: then flash may take the queries of all documents for heads, which needs one query in each.
  int64_t longest_queries;
  int64_t longest_keys;
  std::optional<int64_t> window_left;  ///< how many keys before its own a query sees
};

/// Sums of gradients of keys or values over several calls.
at::Tensor wide_sums(const at::Tensor& gradient) {
  return at::zeros(gradient.sizes(), gradient.options().dtype(compute_type(gradient)));
}

bool serves(const QueryKeyValue& inputs, const AttentionShape& shape, std::span<const AttentionRange> ranges,
            const at::Tensor& sinks) {
  return why_not_flash(inputs, shape, ranges, sinks, compute_capability(inputs.q)).empty();
}

}  // namespace

void flash_attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                             std::span<const AttentionRange> ranges, const at::Tensor& out,
                             const at::Tensor& lse) {
  for (const FlashPass& pass : flash_passes(ranges, shape.window)) {
    const FlashCall call(pass, inputs, shape);
    const auto [result, log_sums, rng_state, unused, mask] = at::_flash_attention_forward(
        call.q, call.k, call.v, call.query_bounds, call.key_bounds, call.longest_queries, call.longest_keys,
        /*dropout_p=*/0.0, pass.causal, /*return_debug_mask=*/false, shape.scale, call.window_left);
    move_rows(pass.queries, result.flatten(1), out);
    move_rows(pass.queries, log_sums.transpose(0, 1), lse);  // flash has [heads, tokens]
  }
}

void flash_attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                              const at::Tensor& lse, const AttentionShape& shape,
                              std::span<const AttentionRange> ranges, const QueryKeyValue& gradients) {
  const std::vector<FlashPass> passes = flash_passes(ranges, shape.window);
  const std::vector<Rows> documents = document_keys(ranges);
  const bool several = passes.size() > 1;
  const at::Tensor grad_k = several ? wide_sums(gradients.k) : gradients.k;
  const at::Tensor grad_v = several ? wide_sums(gradients.v) : gradients.v;
  if (!several && (passes.empty() || passes.front().keys != documents)) {
    for (const Rows& rows : documents) {
      rows_of(grad_k, rows).zero_();
      rows_of(grad_v, rows).zero_();
    }
  }
  for (const FlashPass& pass : passes) {
    const FlashCall call(pass, inputs, shape);
    const Rows queries = all_of(pass.queries);
    const at::Tensor no_dropout = at::empty({2}, call.q.options().dtype(at::kUInt64));
    const auto [q, k, v] = at::_flash_attention_backward(
        by_head(grad_out, queries, shape.head_dim), call.q, call.k, call.v,
        by_head(out, queries, shape.head_dim), rows_of(lse, queries).transpose(0, 1).contiguous(),
        call.query_bounds, call.key_bounds, call.longest_queries, call.longest_keys, /*dropout_p=*/0.0,
        pass.causal, no_dropout, no_dropout, shape.scale, call.window_left);
    move_rows(pass.queries, q.flatten(1), gradients.q);
    move_rows(pass.keys, k.flatten(1), grad_k, several);
    move_rows(pass.keys, v.flatten(1), grad_v, several);
  }
  if (!several) return;
  for (const Rows& rows : documents) {
    rows_of(gradients.k, rows).copy_(rows_of(grad_k, rows));
    rows_of(gradients.v, rows).copy_(rows_of(grad_v, rows));
  }
}

void attention_forward(const QueryKeyValue& inputs, const AttentionShape& shape,
                       std::span<const AttentionRange> ranges, const at::Tensor& out, const at::Tensor& lse,
                       const at::Tensor& sinks) {
  if (!serves(inputs, shape, ranges, sinks))
    return reference::attention_forward(inputs, shape, ranges, out, lse, sinks);
  flash_attention_forward(inputs, shape, ranges, out, lse);
}

void attention_backward(const at::Tensor& grad_out, const QueryKeyValue& inputs, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const AttentionRange> ranges, const QueryKeyValue& gradients) {
  if (!serves(inputs, shape, ranges, /*sinks=*/{}) || !is_aligned(out) || !is_aligned(grad_out))
    return reference::attention_backward(grad_out, inputs, out, lse, shape, ranges, gradients);
  flash_attention_backward(grad_out, inputs, out, lse, shape, ranges, gradients);
}

}  // namespace stepforge::cuda_plugin
