// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/token_sum.h"

#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace stepforge {

namespace {

/// 1 where a query of a range sees a key.
at::Tensor mask_of(const std::vector<AttentionRange>& ranges, int64_t queries, int64_t keys) {
  at::Tensor seen = at::zeros({queries, keys}, at::device(at::kCPU).dtype(at::kFloat));
  for (const AttentionRange& range : ranges) {
    for (int64_t query = 0; query < range.queries; ++query) {
      const int64_t count = range.past + (range.causal ? query + 1 : 0);
      seen[range.query_begin + query].narrow(0, range.key_begin, count).fill_(1.0);
    }
  }
  return seen;
}

/// Every token's sum over the tokens that it sees, or in backward over those that see it.
class TokenSum {
 public:
  TokenSum(const BatchTensors& batch, const ContextExchange& exchange, bool backward)
      : batch_(batch), exchange_(exchange), backward_(backward) {}

  at::Tensor operator()(const at::Tensor& x) const {
    if (exchange_.parallel.across() == 1) return product(batch_.attention_ranges, x, x.size(0));
    return exchange_.parallel.has_ring() ? around_the_ring(x) : gathered(x);
  }

 private:
  /// `others`: tokens on the other side of the ranges.
  at::Tensor product(const std::vector<AttentionRange>& ranges, const at::Tensor& x, int64_t others) const {
    const at::Tensor mask =
        backward_ ? mask_of(ranges, x.size(0), others).t() : mask_of(ranges, others, x.size(0));
    return at::mm(mask.to(x.options()), x);
  }

  at::Tensor gathered(const at::Tensor& x) const {
    const int64_t all = exchange_.parallel.across() * x.size(0);
    if (!backward_) {
      const at::Tensor parts = at::empty({all, x.size(1)}, x.options());
      exchange_.gather(x, parts);
      return product(batch_.attention_ranges, parts.index_select(0, batch_.index_in_parts), x.size(0));
    }
    const at::Tensor whole = product(batch_.attention_ranges, x, all);
    at::Tensor own = at::empty_like(x);
    exchange_.sum_parts(whole.index_select(0, batch_.index_in_rows), own);
    return own;
  }

  /// In forward the tokens travel, in backward the sums.
  at::Tensor around_the_ring(const at::Tensor& x) const {
    at::Tensor here = backward_ ? at::zeros_like(x) : x.clone();
    at::Tensor sum = at::zeros_like(x);
    at::Tensor next = at::empty_like(x);
    for (int64_t step = 0; step < exchange_.parallel.across(); ++step) {
      const at::Tensor part =
          product(batch_.ranges_to(batch_.host.part.joined().before(step)), backward_ ? x : here, x.size(0));
      (backward_ ? here : sum).add_(part);
      exchange_.pass(here, next, /*distance=*/1).get();
      std::swap(here, next);
    }
    return backward_ ? here : sum;
  }

  const BatchTensors& batch_;
  const ContextExchange& exchange_;
  bool backward_;
};

}  // namespace

at::Tensor sum_seen_tokens(const at::Tensor& x, const BatchTensors& batch, const ContextExchange& exchange) {
  return TokenSum(batch, exchange, /*backward=*/false)(x);
}

at::Tensor sum_seeing_tokens(const at::Tensor& x, const BatchTensors& batch,
                             const ContextExchange& exchange) {
  return TokenSum(batch, exchange, /*backward=*/true)(x);
}

}  // namespace stepforge
