// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/token_dispatch.h"

#include <cstddef>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

std::vector<std::size_t> byte_sizes(const at::Tensor& rows, std::span<const int64_t> counts) {
  const auto row = static_cast<std::size_t>(rows.size(1)) * rows.element_size();
  std::vector<std::size_t> sizes;
  for (const int64_t count : counts) sizes.push_back(static_cast<std::size_t>(count) * row);
  return sizes;
}

/// Sends outgoing_rows[r] of the rows of `outgoing` to rank r, one rank after the other; the result has those that come.
at::Tensor exchange_rows(const at::Tensor& outgoing, std::span<const int64_t> outgoing_rows, int64_t coming,
                         std::span<const int64_t> incoming_rows, Communicator& ranks) {
  at::Tensor incoming = at::empty({coming, outgoing.size(1)}, outgoing.options());
  ranks.all_to_all(bytes_of(outgoing), byte_sizes(outgoing, outgoing_rows), bytes_of(incoming),
                   byte_sizes(incoming, incoming_rows));
  return incoming;
}

at::Tensor to_experts(const at::Tensor& outgoing, const TokenRoutes& routes, Communicator& ranks) {
  return exchange_rows(outgoing, routes.outgoing_rows, routes.received, routes.incoming_rows, ranks);
}

at::Tensor to_tokens(const at::Tensor& outgoing, const TokenRoutes& routes, Communicator& ranks) {
  return exchange_rows(outgoing, routes.incoming_rows, routes.sent.count(), routes.outgoing_rows, ranks);
}

at::Tensor rows_of(const at::Tensor& tokens, const ExpertRows& sent) {
  at::Tensor rows = at::empty({sent.count(), tokens.size(1)}, tokens.options());
  gather_rows(tokens, sent, rows);
  return rows;
}

at::Tensor sums_of(const at::Tensor& rows, const ExpertRows& sent) {
  at::Tensor sums = at::empty({sent.rows.size(0), rows.size(1)}, rows.options());
  combine_rows(rows, sent, sums);
  return sums;
}

/// From each rank the number of rows for each expert of this one, [ranks, own] int64: also sets the routes' numbers.
at::Tensor exchange_counts(TokenRoutes& routes, int64_t own, const at::TensorOptions& options,
                           Communicator& ranks) {
  const int64_t degree = ranks.size();
  const at::Tensor outgoing = at::empty({degree, own}, options.dtype(at::kLong));
  auto* counts = outgoing.mutable_data_ptr<int64_t>();
  for (std::size_t e = 0; e + 1 < routes.sent.offsets.size(); ++e)
    counts[e] = routes.sent.offsets[e + 1] - routes.sent.offsets[e];
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
    routes.outgoing_rows.push_back(rows_out);
    routes.incoming_rows.push_back(rows_in);
    routes.received += rows_in;
  }
  return incoming;
}

/// Of each row that comes its expert, [R, 1] int32, from the numbers of rows [ranks, own].
at::Tensor experts_of_rows(const at::Tensor& counts, int64_t received) {
  at::Tensor experts = at::empty({received, 1}, counts.options().dtype(at::kInt));
  const auto* came = counts.const_data_ptr<int64_t>();
  auto* next = experts.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < counts.numel(); ++i)
    for (int64_t row = 0; row < came[i]; ++row) *next++ = static_cast<int32_t>(i % counts.size(1));
  return experts;
}

}  // namespace

DispatchedRows dispatch_tokens(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& indices,
                               int64_t experts, Communicator& ranks) {
  if (experts % ranks.size() != 0)
    throw Error(format("{} experts cannot be spread evenly over {} ranks", experts, ranks.size()));
  DispatchedRows made;
  made.routes.sent = sort_by_expert(indices, experts);
  const ExpertRows& sent = made.routes.sent;
  const at::Tensor counts = exchange_counts(made.routes, experts / ranks.size(), indices.options(), ranks);
  made.experts = experts_of_rows(counts, made.routes.received);
  made.rows = to_experts(rows_of(tokens, sent), made.routes, ranks);
  const at::Tensor slots = weights.contiguous().view({-1, 1});
  made.weights = to_experts(slots.index_select(0, sent.slots), made.routes, ranks);
  return made;
}

at::Tensor combine_results(const at::Tensor& results, const TokenRoutes& routes, Communicator& ranks) {
  return sums_of(to_tokens(results.contiguous(), routes, ranks), routes.sent);
}

at::Tensor combine_gradient(const at::Tensor& gradient, const TokenRoutes& routes, Communicator& ranks) {
  return to_experts(rows_of(gradient.contiguous(), routes.sent), routes, ranks);
}

TokenGradients dispatch_gradient(const at::Tensor& rows, const at::Tensor& weights, const TokenRoutes& routes,
                                 Communicator& ranks) {
  TokenGradients made;
  made.tokens = sums_of(to_tokens(rows.contiguous(), routes, ranks), routes.sent);
  const at::Tensor of_rows = to_tokens(weights.contiguous(), routes, ranks);
  const at::Tensor& slots = routes.sent.rows;
  made.weights = of_rows.index_select(0, slots.view({-1})).view(slots.sizes());
  return made;
}

}  // namespace stepforge
