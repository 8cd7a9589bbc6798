// SPDX-License-Identifier: Apache-2.0
// Each rank sends the rows of its own tokens: all-to-all with uneven parts.
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "stepforge/kernels/device_copy.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/storage/expert_parts.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/storage/token_dispatch.h"

namespace stepforge {

namespace {

std::vector<std::size_t> byte_sizes(const at::Tensor& rows, std::span<const int64_t> counts) {
  const auto row = static_cast<std::size_t>(rows.size(1)) * rows.element_size();
  std::vector<std::size_t> sizes;
  for (const int64_t count : counts) sizes.push_back(static_cast<std::size_t>(count) * row);
  return sizes;
}

/// Sends outgoing_rows[r] of the rows of `outgoing` to rank r, one rank after the other; returns the rows that arrive.
at::Tensor exchange_rows(const at::Tensor& outgoing, std::span<const int64_t> outgoing_rows, int64_t coming,
                         std::span<const int64_t> incoming_rows, Communicator& ranks) {
  at::Tensor incoming = at::empty({coming, outgoing.size(1)}, outgoing.options());
  ranks.all_to_all(bytes_of(outgoing), byte_sizes(outgoing, outgoing_rows), bytes_of(incoming),
                   byte_sizes(incoming, incoming_rows));
  return incoming;
}

/// Outgoing rows are sorted by expert, so rows for one rank are together; arriving rows are in the order of the ranks that
/// sent them. A part of an expert counts as an expert.
class AllToAllRoutes : public TokenRoutes {
 public:
  AllToAllRoutes(const at::Tensor& indices, int64_t experts, int64_t parts)
      : sent_(sort_by_expert(indices, experts)), parts_(parts) {}

  at::Tensor combine(const at::Tensor& results, Communicator& ranks) const override {
    return combine_rows(to_tokens(results.contiguous(), ranks), sent_);
  }
  at::Tensor combine_gradient(const at::Tensor& gradient, Communicator& ranks) const override {
    return to_experts(gather_rows(gradient.contiguous(), sent_), ranks);
  }
  TokenGradients dispatch_gradient(const at::Tensor& rows, const at::Tensor& weights,
                                   Communicator& ranks) const override {
    TokenGradients made;
    made.tokens = combine_rows(to_tokens(rows.contiguous(), ranks), sent_);
    const at::Tensor of_rows = to_tokens(weights.contiguous(), ranks);
    const at::Tensor& slots = sent_.rows;
    made.weights = sum_of_parts(of_rows.index_select(0, slots.view({-1})).view(slots.sizes()), parts_);
    return made;
  }

  const ExpertRows& sent() const { return sent_; }
  at::Tensor to_experts(const at::Tensor& outgoing, Communicator& ranks) const {
    return exchange_rows(outgoing, outgoing_rows_, received_, incoming_rows_, ranks);
  }
  at::Tensor exchange_counts(Communicator& ranks);

 private:
  at::Tensor to_tokens(const at::Tensor& outgoing, Communicator& ranks) const {
    return exchange_rows(outgoing, incoming_rows_, sent_.count(), outgoing_rows_, ranks);
  }

  ExpertRows sent_;  // the rows of this rank's tokens
  int64_t parts_;
  std::vector<int64_t> outgoing_rows_;  // to each rank
  std::vector<int64_t> incoming_rows_;  // from each rank
  int64_t received_ = 0;                // the sum of incoming_rows_
};

/// The number of rows that each rank sends to each expert of this rank, [ranks, own] int64; the routes remember them.
at::Tensor AllToAllRoutes::exchange_counts(Communicator& ranks) {
  const int64_t degree = ranks.size();
  const int64_t own = (std::ssize(sent_.offsets) - 1) / degree;
  const at::Tensor outgoing = at::empty({degree, own}, at::device(at::kCPU).dtype(at::kLong));
  auto* counts = outgoing.mutable_data_ptr<int64_t>();
  for (std::size_t e = 0; e + 1 < sent_.offsets.size(); ++e)
    counts[e] = sent_.offsets[e + 1] - sent_.offsets[e];
  const std::vector<int64_t> one_each(static_cast<std::size_t>(degree), 1);
  at::Tensor incoming = exchange_rows(outgoing, one_each, degree, one_each, ranks);
  const auto* came = incoming.const_data_ptr<int64_t>();
  for (int64_t part = 0; part < degree; ++part) {
    int64_t rows_out = 0;
    int64_t rows_in = 0;
    for (int64_t e = part * own; e < (part + 1) * own; ++e) {
      rows_out += counts[e];
      rows_in += came[e];
    }
    outgoing_rows_.push_back(rows_out);
    incoming_rows_.push_back(rows_in);
    received_ += rows_in;
  }
  return incoming;
}

}  // namespace

DispatchedRows dispatch_all_to_all(const TokenChoice& choice, Communicator& ranks) {
  const PartChoice parts =
      choose_parts(choice.weights, choice.indices, choice.experts, choice.parts, ranks.size());
  auto routes = std::make_unique<AllToAllRoutes>(parts.indices, parts.experts, choice.parts);
  DispatchedRows made;
  made.experts = copy_to_device(experts_of_rows(routes->exchange_counts(ranks)), choice.tokens.device());
  made.rows = routes->to_experts(gather_rows(choice.tokens, routes->sent()), ranks);
  const at::Tensor slots = parts.weights.contiguous().view({-1, 1});
  made.weights = routes->to_experts(slots.index_select(0, routes->sent().slots), ranks);
  made.routes = std::move(routes);
  return made;
}

}  // namespace stepforge
