// SPDX-License-Identifier: Apache-2.0
// All ranks gather all tokens, and each takes the rows of its own experts: all-gather, and reduce-scatter back.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/comm/gather.h"
#include "stepforge/kernels/device_copy.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/storage/expert_parts.h"
#include "stepforge/storage/tensor_collectives.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/storage/token_dispatch.h"

namespace stepforge {

namespace {

constexpr int32_t kNoExpert = -1;  // the expert of padding tokens

/// The tokens of a rank, padded to one of equal parts of the tokens of all ranks.
class GatheredTokens {
 public:
  GatheredTokens() = default;
  /// `most`: tokens of the rank with the largest number.
  GatheredTokens(int64_t tokens, int64_t most) : tokens_(tokens), most_(most) {}

  /// Values [N, D] of the tokens of each rank, one rank after the other, padded with `filler`.
  at::Tensor gather(const at::Tensor& values, Communicator& ranks, int32_t filler = 0) const {
    at::Tensor all = at::empty({ranks.size() * most_, values.size(1)}, values.options());
    const at::Tensor own = tokens_ == most_ ? values.contiguous()
                                            : at::constant_pad_nd(values, {0, 0, 0, most_ - tokens_}, filler);
    ranks.all_gather(bytes_of(own), bytes_of(all));
    return all;
  }

  /// Sums the values of all tokens over ranks. Returns the sums for this rank's tokens, [N, D].
  at::Tensor sum(const at::Tensor& all, Communicator& ranks) const {
    at::Tensor own = at::empty({most_, all.size(1)}, all.options());
    ranks.reduce_scatter(bytes_of(all), bytes_of(own), summed_type(all));
    return own.narrow(0, 0, tokens_);
  }

 private:
  int64_t tokens_ = 0;
  int64_t most_ = 0;
};

class AllGatherRoutes : public TokenRoutes {
 public:
  AllGatherRoutes(const GatheredTokens& tokens, ExpertRows own) : tokens_(tokens), own_(std::move(own)) {}

  at::Tensor combine(const at::Tensor& results, Communicator& ranks) const override {
    return tokens_.sum(combine_rows(results.contiguous(), own_), ranks);
  }
  at::Tensor combine_gradient(const at::Tensor& gradient, Communicator& ranks) const override {
    return gather_rows(tokens_.gather(gradient, ranks), own_);
  }
  TokenGradients dispatch_gradient(const at::Tensor& rows, const at::Tensor& weights,
                                   Communicator& ranks) const override {
    at::Tensor tokens = combine(rows, ranks);
    const at::Tensor slots = at::zeros({own_.rows.numel(), 1}, weights.options());
    slots.index_copy_(0, own_.slots.to(at::kLong), weights);
    return {std::move(tokens), tokens_.sum(slots.view(own_.rows.sizes()), ranks)};
  }

  const ExpertRows& own() const { return own_; }
  /// Selects from the values of all slots, [tokens of all ranks, k], those of this rank's rows, [R, 1].
  at::Tensor slots_of(const at::Tensor& all) const { return all.view({-1, 1}).index_select(0, own_.slots); }
  /// The numbers of rows by rank and expert, [ranks, own] int64.
  at::Tensor counts(int64_t ranks) const {
    const int64_t groups = std::ssize(own_.offsets) - 1;
    at::Tensor counts = at::empty({ranks, groups / ranks}, at::device(at::kCPU).dtype(at::kLong));
    std::adjacent_difference(own_.offsets.begin() + 1, own_.offsets.end(),
                             counts.mutable_data_ptr<int64_t>());
    return counts;
  }

 private:
  GatheredTokens tokens_;
  ExpertRows own_;
};

}  // namespace

DispatchedRows dispatch_all_gather(const TokenChoice& choice, Communicator& ranks) {
  const int64_t held = experts_per_rank(choice.experts, choice.parts, ranks.size());
  require_experts(choice.indices, choice.experts);
  const std::vector<int64_t> tokens = gather_values(ranks, std::array{choice.tokens.size(0)});
  const GatheredTokens gathered(choice.tokens.size(0), *std::ranges::max_element(tokens));
  const int64_t first = ranks.rank() / choice.parts * held;
  auto routes = std::make_unique<AllGatherRoutes>(
      gathered,
      select_rows(gathered.gather(choice.indices, ranks, kNoExpert), {first, first + held}, ranks.size()));
  DispatchedRows made;
  made.experts = copy_to_device(experts_of_rows(routes->counts(ranks.size())), choice.tokens.device());
  made.weights = routes->slots_of(gathered.gather(choice.weights, ranks));
  made.rows = gather_rows(gathered.gather(choice.tokens, ranks), routes->own());
  made.routes = std::move(routes);
  return made;
}

}  // namespace stepforge
