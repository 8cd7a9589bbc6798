// SPDX-License-Identifier: Apache-2.0
// Experts that are spread over ranks: rows go to the ranks that have their experts (dispatch), and their results come
// back (combine). Each is the backward of the other. Outgoing rows are sorted by expert, so those for one rank are
// together; those that come are in the order of the ranks that sent them.
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/nn/expert_functions.h"
#include "stepforge/nn/function_data.h"

namespace stepforge {

/// Where the rows of a micro-batch go and come from.
struct RowRoutes {
  const ExpertExchange* exchange = nullptr;
  ExpertRows sent;                          ///< the rows of this rank's tokens
  std::vector<int64_t> outgoing_rows = {};  ///< to each rank
  std::vector<int64_t> incoming_rows = {};  ///< from each rank
  int64_t received = 0;                     ///< the sum of incoming_rows

  /// Rows of `outgoing` to the ranks that have their experts.
  at::Tensor to_experts(const at::Tensor& outgoing) const {
    if (!exchange->several()) return outgoing;
    at::Tensor incoming = at::empty({received, outgoing.size(1)}, outgoing.options());
    exchange->all_to_all(outgoing, outgoing_rows, incoming, incoming_rows);
    return incoming;
  }
  /// And back.
  at::Tensor to_tokens(const at::Tensor& outgoing) const {
    if (!exchange->several()) return outgoing;
    at::Tensor incoming = at::empty({sent.count(), outgoing.size(1)}, outgoing.options());
    exchange->all_to_all(outgoing, incoming_rows, incoming, outgoing_rows);
    return incoming;
  }

  at::Tensor rows_of(const at::Tensor& tokens) const {
    at::Tensor rows = at::empty({sent.count(), tokens.size(1)}, tokens.options());
    gather_rows(tokens, sent, rows);
    return rows;
  }
  at::Tensor sums_of(const at::Tensor& rows) const {
    at::Tensor sums = at::empty({sent.rows.size(0), rows.size(1)}, rows.options());
    combine_rows(rows, sent, sums);
    return sums;
  }
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The routes, and of each row that comes its expert among those of this rank: [received, 1] int32.
std::pair<RowRoutes, at::Tensor> exchange_routes(const at::Tensor& indices, int64_t experts,
                                                 const ExpertExchange& exchange) {
  const int64_t degree = exchange.parallel.degree;
  const int64_t own = experts / degree;
  RowRoutes routes{.exchange = &exchange, .sent = sort_by_expert(indices, experts)};
  const auto options = indices.options().dtype(at::kLong);
  const at::Tensor outgoing = at::empty({degree, own}, options);
  const at::Tensor incoming = exchange.several() ? at::empty({degree, own}, options) : outgoing;
  auto* counts = outgoing.mutable_data_ptr<int64_t>();
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e)
    counts[e] = routes.sent.offsets[e + 1] - routes.sent.offsets[e];
  const std::vector<int64_t> one_each(static_cast<size_t>(degree), 1);
  if (exchange.several()) exchange.all_to_all(outgoing, one_each, incoming, one_each);

  const auto* came = incoming.const_data_ptr<int64_t>();
  for (int64_t part = 0; part < degree; ++part) {
    routes.outgoing_rows.push_back(routes.sent.offsets[static_cast<size_t>((part + 1) * own)] -
                                   routes.sent.offsets[static_cast<size_t>(part * own)]);
    int64_t rows = 0;
    for (int64_t e = 0; e < own; ++e) rows += came[part * own + e];
    routes.incoming_rows.push_back(rows);
    routes.received += rows;
  }
  at::Tensor local = at::empty({routes.received, 1}, indices.options());
  auto* next = local.mutable_data_ptr<int32_t>();
  for (int64_t part = 0; part < degree; ++part)
    for (int64_t e = 0; e < own; ++e)
      for (int64_t row = 0; row < came[part * own + e]; ++row) *next++ = static_cast<int32_t>(e);
  return {std::move(routes), std::move(local)};
}

/// x [N, D] and weights [N, k] to the rows that come, [R, D], and their weights, [R, 1].
struct DispatchFunction : torch::autograd::Function<DispatchFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                               const std::shared_ptr<const RowRoutes>& routes) {
    save_value(*ctx, "routes", routes);
    at::Tensor rows = routes->to_experts(routes->rows_of(x));
    const at::Tensor slots = weights.contiguous().view({-1, 1});
    return {std::move(rows), routes->to_experts(slots.index_select(0, routes->sent.slots))};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto& routes = *saved_value<std::shared_ptr<const RowRoutes>>(*ctx, "routes");
    at::Tensor x_gradient = routes.sums_of(routes.to_tokens(gradients[0].contiguous()));
    const at::Tensor of_rows = routes.to_tokens(gradients[1].contiguous());
    at::Tensor of_slots = of_rows.index_select(0, routes.sent.rows.view({-1}));
    return {std::move(x_gradient), of_slots.view(routes.sent.rows.sizes()), at::Tensor()};
  }
};

/// The results [R, D] of the rows that came, back to the tokens: [N, D].
struct CombineFunction : torch::autograd::Function<CombineFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows,
                            const std::shared_ptr<const RowRoutes>& routes) {
    save_value(*ctx, "routes", routes);
    return routes->sums_of(routes->to_tokens(rows));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto& routes = *saved_value<std::shared_ptr<const RowRoutes>>(*ctx, "routes");
    return {routes.to_experts(routes.rows_of(gradients[0].contiguous())), at::Tensor()};
  }
};

}  // namespace

DispatchedRows dispatch_rows(const at::Tensor& x, const RoutedTokens& routed, int64_t experts,
                             const ExpertExchange& exchange) {
  auto [routes, indices] = exchange_routes(routed.indices, experts, exchange);
  auto shared = std::make_shared<const RowRoutes>(std::move(routes));
  const variable_list rows = DispatchFunction::apply(x, routed.weights, shared);
  return {rows[0], rows[1], std::move(indices), std::move(shared)};
}

at::Tensor return_rows(const at::Tensor& results, const DispatchedRows& sent) {
  return CombineFunction::apply(results, sent.routes);
}

at::Tensor run_spread_experts(const at::Tensor& x, const RoutedTokens& routed, int64_t experts,
                              Parameter& gate_up, Parameter& down, const ExpertExchange& exchange) {
  const int64_t degree = exchange.parallel.degree;
  const int64_t held = down.value().size(0) / x.size(1);
  if (held * degree != experts) {
    throw Error(format("{}: this rank has {} of {} experts, but they are spread over {} ranks",
                       down.spec().name, held, experts, degree));
  }
  const DispatchedRows sent = dispatch_rows(x, routed, experts, exchange);
  return return_rows(run_experts(sent.rows, {sent.weights, sent.experts}, held, gate_up, down), sent);
}

}  // namespace stepforge
