// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/nn/calls/keys.h"
#include "stepforge/nn/kv_cache.h"

namespace stepforge {

namespace {

/// Generation: appends the keys and values of the new tokens to the cache and attends to all of it.
void attend_cached(const CallRun& run) {
  const auto& [shape, layer, context] = attributes_of<AttentionAttributes>(run.call);
  const at::Tensor& qkv = run.operands[0];
  KvCache& cache = *run.context.cache;
  const int64_t count = qkv.size(0) / cache.rows();
  cache.append(layer, qkv, count);
  const at::Tensor queries =
      qkv.narrow(1, 0, shape.q_width()).contiguous().view({cache.rows(), count, shape.q_width()});
  const std::vector<int64_t> past(static_cast<size_t>(cache.rows()), cache.length());
  attention_cached(queries, cache.keys(layer), cache.values(layer), past, shape,
                   run.written[0].view({cache.rows(), count, shape.out_width()}),
                   sinks_of(run).values(shape));
}

/// Keys and values of whole rows.
at::Tensor gathered_keys(const CallRun& run) {
  const auto& [shape, layer, context] = attributes_of<AttentionAttributes>(run.call);
  at::Tensor own = own_keys(run.operands[0], shape);
  const at::Tensor parts = at::empty({context.across() * own.size(0), own.size(1)}, own.options());
  run.resources.exchange.gather(own, parts);
  own.reset();
  return parts.index_select(0, run.context.batch->index_in_parts);
}

}  // namespace

void check_parts(const BatchTensors& batch, const ContextParallel& parallel) {
  const ContextPart& part = batch.host.part;
  if (parallel.degree == part.degree && parallel.heads() == part.heads) return;
  throw Error(
      format("attention: the batch has one of {} parts of its rows, {} of which attend together, but the "
             "model was made for {} and {}",
             part.degree, part.heads, parallel.degree, parallel.heads()));
}

AttentionSinks sinks_of(const CallRun& run) {
  if (run.call.weights.empty()) return {};
  const auto& [shape, layer, context] = attributes_of<AttentionAttributes>(run.call);
  const ContextPart& part = run.context.batch->host.part;
  return {&run.weight(0), context.heads() > 1 ? part.index % part.heads * shape.heads : 0};
}

void attend_gathered(const CallRun& run) {
  const AttentionShape& shape = attributes_of<AttentionAttributes>(run.call).shape;
  const at::Tensor keys = gathered_keys(run);
  attention_forward(with_keys(run.operands[0], keys, shape), shape, run.context.batch->attention_ranges,
                    run.written[0], run.written[1], sinks_of(run).values(shape));
}

void attend_gathered_backward(const CallRun& run) {
  const AttentionShape& shape = attributes_of<AttentionAttributes>(run.call).shape;
  const BatchTensors& batch = *run.context.batch;
  const at::Tensor& qkv = run.operands[0];
  const at::Tensor qkv_gradient = run.written[0];
  at::Tensor keys = gathered_keys(run);
  at::Tensor gradient = at::empty_like(keys);
  stepforge::attention_backward(run.gradients[0], with_keys(qkv, keys, shape), run.results[0], run.results[1],
                                shape, batch.attention_ranges, with_keys(qkv_gradient, gradient, shape));
  keys.reset();
  const at::Tensor parts = gradient.index_select(0, batch.index_in_rows);
  gradient.reset();
  const at::Tensor own = at::empty({qkv.size(0), parts.size(1)}, parts.options());
  run.resources.exchange.sum_parts(parts, own);
  qkv_gradient.narrow(1, shape.out_width(), own.size(1)).copy_(own);
}

namespace {

void attention(const CallRun& run) {
  const auto& [shape, layer, context] = attributes_of<AttentionAttributes>(run.call);
  if (run.context.cache != nullptr) return attend_cached(run);
  check_parts(*run.context.batch, context);
  if (context.has_ring()) return attend_ring(run);
  if (context.across() > 1) return attend_gathered(run);
  attention_forward(split_qkv(run.operands[0], shape), shape, run.context.batch->attention_ranges,
                    run.written[0], run.written[1], sinks_of(run).values(shape));
}

void attention_backward(const CallRun& run) {
  const auto& [shape, layer, context] = attributes_of<AttentionAttributes>(run.call);
  const auto& ranges = run.context.batch->attention_ranges;
  sinks_of(run).add_gradient(run.gradients[0], run.results[0], run.results[1], shape, ranges);
  if (context.has_ring()) return attend_ring_backward(run);
  if (context.across() > 1) return attend_gathered_backward(run);
  stepforge::attention_backward(run.gradients[0], split_qkv(run.operands[0], shape), run.results[0],
                                run.results[1], shape, ranges, split_qkv(run.written[0], shape));
}

}  // namespace

extern const CallEntry kAttentionEntry = {&kAttention, attention, attention_backward};

}  // namespace stepforge
