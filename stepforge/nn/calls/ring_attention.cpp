// SPDX-License-Identifier: Apache-2.0
// Ring attention: keys and values pass from rank to rank while each rank attends to those at hand. Partial
// results are merged by their log-sum-exp in fp32; those of one step have the type of qkv (Liu et al.,
// arXiv:2310.01889).
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include "stepforge/nn/calls/keys.h"

namespace stepforge {

namespace {

/// A tensor of each rank in turn. The next one is on its way while this one is used.
class Ring {
 public:
  Ring(at::Tensor own, const ContextExchange& exchange) : here_(std::move(own)), exchange_(exchange) {}
  ~Ring() {
    if (arrival_.valid()) arrival_.wait();  // the buffers must outlive the exchange, even if it failed
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  const at::Tensor& here() const { return here_; }
  void start_next() {
    if (!next_.defined()) next_ = at::empty_like(here_);
    arrival_ = exchange_.pass(here_, next_, /*distance=*/1);
  }
  void take_next() {
    std::exchange(arrival_, {}).get();
    std::swap(here_, next_);
  }

 private:
  at::Tensor here_;
  at::Tensor next_;
  std::shared_future<void> arrival_;  ///< of next_
  const ContextExchange& exchange_;
};

/// Adds a partial result to the one so far: each is a mean of values, weighted by exp(lse).
void merge(const at::Tensor& sum, const at::Tensor& sum_lse, const at::Tensor& part,
           const at::Tensor& part_lse, const AttentionShape& shape) {
  const at::Tensor lse = at::logaddexp(sum_lse, part_lse);
  const auto by_head = [&](const at::Tensor& rows) { return rows.view({rows.size(0), -1, shape.head_dim}); };
  by_head(sum).mul_((sum_lse - lse).exp().unsqueeze(-1));
  by_head(sum).addcmul_(by_head(part).to(at::kFloat), (part_lse - lse).exp().unsqueeze(-1));
  sum_lse.copy_(lse);
}

/// The same ranges, the first and the last half of their queries.
std::pair<std::vector<AttentionRange>, std::vector<AttentionRange>> in_two(
    const std::vector<AttentionRange>& ranges) {
  int64_t left = 0;  // queries of the first half
  for (const AttentionRange& range : ranges) left += range.queries;
  left /= 2;
  std::pair<std::vector<AttentionRange>, std::vector<AttentionRange>> halves;
  for (const AttentionRange& range : ranges) {
    AttentionRange before = range;
    before.queries = std::min(left, range.queries);
    AttentionRange after = range;
    after.query_begin += before.queries;
    after.queries -= before.queries;
    if (range.causal) after.past += before.queries;
    if (before.queries > 0) halves.first.push_back(before);
    if (after.queries > 0) halves.second.push_back(after);
    left -= before.queries;
  }
  return halves;
}

}  // namespace

void attend_ring(const CallRun& run) {
  const auto& [shape, layer, context] = attributes_of<AttentionAttributes>(run.call);
  const at::Tensor& qkv = run.operands[0];
  const at::Tensor lse = run.written[1];
  const BatchTensors& batch = *run.context.batch;
  const bool wide = qkv.scalar_type() == at::kFloat;
  const at::Tensor sum = wide ? run.written[0] : at::empty({qkv.size(0), shape.out_width()}, lse.options());
  const at::Tensor part = at::empty(sum.sizes(), qkv.options());
  const at::Tensor part_lse = at::empty_like(lse);
  Ring ring(own_keys(qkv, shape), run.resources.exchange);
  for (int64_t step = 0; step < context.across(); ++step) {
    const bool last = step + 1 == context.across();
    if (!last) ring.start_next();
    const std::vector<AttentionRange> ranges = batch.ranges_to(batch.host.part.joined().before(step));
    attention_forward(with_keys(qkv, ring.here(), shape), shape, ranges, part, part_lse);
    if (step == 0) {  // every query sees itself
      sum.copy_(part);
      lse.copy_(part_lse);
    } else {
      for (const AttentionRange& range : ranges) {
        const auto rows = [&](const at::Tensor& x) { return x.narrow(0, range.query_begin, range.queries); };
        merge(rows(sum), rows(lse), rows(part), rows(part_lse), shape);
      }
    }
    if (!last) ring.take_next();
  }
  if (!wide) run.written[0].copy_(sum);
}

/// Gradients of keys and values travel behind them, from the first rank that has them to where they belong. The
/// rank's own keys come in two halves, of which one covers the first exchange and the other the last.
void attend_ring_backward(const CallRun& run) {
  const auto& attributes = attributes_of<AttentionAttributes>(run.call);
  const AttentionShape& shape = attributes.shape;
  const int64_t degree = attributes.context.across();
  const at::Tensor& qkv = run.operands[0];
  const BatchTensors& batch = *run.context.batch;
  const int64_t width = 2 * key_width(shape);
  const at::TensorOptions fp32_options = qkv.options().dtype(at::kFloat);
  const at::Tensor q_sum = at::zeros({qkv.size(0), shape.out_width()}, fp32_options);
  const at::Tensor q_part = at::empty(q_sum.sizes(), qkv.options());
  const at::Tensor kv_part = at::empty({qkv.size(0), width}, qkv.options());
  const QueryKeyValue part = with_keys(q_part, kv_part, shape);
  const auto differentiate = [&](const at::Tensor& keys, const std::vector<AttentionRange>& ranges) {
    q_part.zero_();
    kv_part.zero_();
    stepforge::attention_backward(run.gradients[0], with_keys(qkv, keys, shape), run.results[0],
                                  run.results[1], shape, ranges, part);
    q_sum.add_(q_part);
  };
  const auto ranges_of = [&](int64_t step) { return batch.ranges_to(batch.host.part.joined().before(step)); };
  const auto [first, second] = in_two(ranges_of(0));
  const at::Tensor own_sum = at::zeros(kv_part.sizes(), fp32_options);
  std::optional<Ring> keys(std::in_place, own_keys(qkv, shape), run.resources.exchange);
  Ring sums(at::zeros(kv_part.sizes(), fp32_options), run.resources.exchange);
  keys->start_next();
  differentiate(keys->here(), first);
  own_sum.add_(kv_part);
  for (int64_t step = 1; step < degree; ++step) {
    keys->take_next();
    if (step + 1 < degree) keys->start_next();
    differentiate(keys->here(), ranges_of(step));
    if (step > 1) sums.take_next();
    sums.here().add_(kv_part);
    sums.start_next();
  }
  keys.reset();
  differentiate(own_keys(qkv, shape), second);
  own_sum.add_(kv_part);
  sums.take_next();
  own_sum.add_(sums.here());
  const at::Tensor gradient = run.written[0];
  gradient.narrow(1, 0, shape.out_width()).copy_(q_sum);
  gradient.narrow(1, shape.out_width(), width).copy_(own_sum);
}

}  // namespace stepforge
