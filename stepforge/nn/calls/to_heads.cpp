// SPDX-License-Identifier: Apache-2.0
// Neighbours exchange tokens for heads, before attention and after it. Gathered tensors are in rank order; index_in_parts and
// index_in_rows reorder them to rows and back.
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/device_copy.h"
#include "stepforge/nn/calls/keys.h"

namespace stepforge {

namespace {

/// Neighbours exchange tokens for heads: each gets some of the heads of all their tokens. A key-value head goes to
/// every one that has query heads of its group.
struct HeadsExchange {
  const HeadsAttributes& heads;
  const BatchTensors& batch;
  const ContextExchange& exchange;

  explicit HeadsExchange(const CallRun& run)
      : heads(attributes_of<HeadsAttributes>(run.call)),
        batch(*run.context.batch),
        exchange(run.resources.exchange) {}
  int64_t degree() const { return heads.degree; }

  /// The heads of qkv that each gets, one after the other.
  at::Tensor heads_of_parts(at::Device device) const {
    const AttentionShape own = heads.part();
    std::vector<int64_t> found;
    const auto add = [&found](int64_t first, int64_t count) {
      for (int64_t head = first; head < first + count; ++head) found.push_back(head);
    };
    for (int64_t part = 0; part < degree(); ++part) {
      const int64_t key = part * own.heads / heads.all.group();
      add(part * own.heads, own.heads);
      add(heads.all.heads + key, own.kv_heads);
      add(heads.all.heads + heads.all.kv_heads + key, own.kv_heads);
    }
    return copy_to_device(at::tensor(found, at::device(at::kCPU).dtype(at::kLong)), device);
  }

  /// [own tokens, width of each] to [joined tokens, width], in the order of ranks.
  at::Tensor to_joined_tokens(const at::Tensor& own) const {
    const int64_t width = own.size(1) / degree();
    const at::Tensor outgoing = own.view({own.size(0), degree(), width}).transpose(0, 1).contiguous();
    const at::Tensor incoming = at::empty_like(outgoing);
    exchange.all_to_all(outgoing, incoming);
    return incoming.view({degree() * own.size(0), width});
  }

  /// The inverse, of joined tokens in their order: a view [own tokens, ranks, width].
  at::Tensor to_own_tokens(const at::Tensor& joined) const {
    const at::Tensor outgoing = joined.index_select(0, batch.index_in_rows);
    const at::Tensor incoming =
        at::empty({degree(), joined.size(0) / degree(), joined.size(1)}, joined.options());
    exchange.all_to_all(outgoing, incoming);
    return incoming.transpose(0, 1);
  }

  /// `out` is allocated when what came before it is free.
  void in_order_of_rows(const at::Tensor& joined, const Written& written) const {
    at::Tensor out = written[0];
    at::index_select_out(out, joined, 0, batch.index_in_parts);
  }

  /// Gradients of the heads of each; those of one head are added.
  void sum_heads(const at::Tensor& gradients, const Written& written) const {
    const AttentionShape& all = heads.all;
    const int64_t count = all.heads + 2 * all.kv_heads;
    const at::Tensor by_head = gradients.view({gradients.size(0), -1, all.head_dim});
    const bool repeated = by_head.size(1) > count;
    const std::vector<int64_t> shape = {gradients.size(0), count, all.head_dim};
    if (!repeated) {
      written[0].view(shape).zero_().index_add_(1, heads_of_parts(gradients.device()), by_head);
      return;
    }
    const at::Tensor sums = at::zeros(shape, gradients.options().dtype(at::kFloat));
    sums.index_add_(1, heads_of_parts(gradients.device()), by_head.to(at::kFloat));
    written[0].view(shape).copy_(sums);
  }
};

void to_heads(const CallRun& run) {
  check_parts(*run.context.batch, run.resources.exchange.parallel);
  const HeadsExchange exchange(run);
  const at::Tensor& qkv = run.operands[0];
  const at::Tensor by_head = qkv.view({qkv.size(0), -1, exchange.heads.all.head_dim});
  const at::Tensor joined = exchange.to_joined_tokens(
      by_head.index_select(1, exchange.heads_of_parts(qkv.device())).view({qkv.size(0), -1}));
  exchange.in_order_of_rows(joined, run.written);
}

void to_heads_backward(const CallRun& run) {
  const HeadsExchange exchange(run);
  at::Tensor own = exchange.to_own_tokens(run.gradients[0]);
  own = own.reshape({own.size(0), -1});
  exchange.sum_heads(own, run.written);
}

void to_tokens(const CallRun& run) {
  const at::Tensor own = HeadsExchange(run).to_own_tokens(run.operands[0]);
  run.written[0].view(own.sizes()).copy_(own);
}

void to_tokens_backward(const CallRun& run) {
  const HeadsExchange exchange(run);
  exchange.in_order_of_rows(exchange.to_joined_tokens(run.gradients[0]), run.written);
}

}  // namespace

extern const CallEntry kToHeadsEntry = {&kToHeads, to_heads, to_heads_backward};
extern const CallEntry kToTokensEntry = {&kToTokens, to_tokens, to_tokens_backward};

}  // namespace stepforge
