// SPDX-License-Identifier: Apache-2.0
// Rows of tokens on their way to the ranks that have their experts (dispatch), and results on their way back (combine). The
// backward of each is the other one. All are collectives of the ranks of the experts. How they move is a DispatchMethod: a
// function that dispatches and a class of routes, which remember where the rows of a micro-batch went.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "stepforge/base/choices.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

/// The tokens of a rank, and the experts that each of them takes.
struct TokenChoice {
  at::Tensor tokens;   ///< [N, D]; N may differ between ranks and be 0
  at::Tensor weights;  ///< [N, k] fp32
  at::Tensor indices;  ///< [N, k] int32
  /// Experts of the layer, spread evenly over the ranks in their order. Each has `parts` on neighbouring ranks: the result of
  /// an expert is the sum over its parts.
  int64_t experts = 0;
  int64_t parts = 1;
};

struct TokenGradients {
  at::Tensor tokens;   ///< [N, D]
  at::Tensor weights;  ///< [N, k]
};

/// Where the rows of a micro-batch went. All functions throw PeerError.
class TokenRoutes {
 public:
  TokenRoutes() = default;
  virtual ~TokenRoutes() = default;
  TokenRoutes(const TokenRoutes&) = delete;
  TokenRoutes& operator=(const TokenRoutes&) = delete;

  /// Returns the results [R, D] of dispatched rows to their tokens: the sum for each token of this rank, [N, D].
  virtual at::Tensor combine(const at::Tensor& results, Communicator& ranks) const = 0;
  /// The gradient of the results, [R, D], from the gradient of the sums, [N, D].
  virtual at::Tensor combine_gradient(const at::Tensor& gradient, Communicator& ranks) const = 0;
  /// The gradients of tokens and weights, from those of the dispatched rows, [R, D], and of their weights, [R, 1].
  virtual TokenGradients dispatch_gradient(const at::Tensor& rows, const at::Tensor& weights,
                                           Communicator& ranks) const = 0;
};

/// The rows for this rank's experts: by the rank of their tokens, then by expert, then in the order of the choice.
struct DispatchedRows {
  at::Tensor rows;     ///< [R, D]
  at::Tensor weights;  ///< [R, 1] fp32
  at::Tensor experts;  ///< [R, 1] int32, among those of this rank
  std::unique_ptr<TokenRoutes> routes;
};

/// Each token has a row for each of its k experts, on the rank that has the expert. Every method makes the same rows, in the
/// same order. Throws PeerError, and Error if there is no such expert or they cannot be spread evenly.
DispatchedRows dispatch_tokens(DispatchMethod method, const TokenChoice& choice, Communicator& ranks);

/// The methods: each rank sends rows for its own tokens, all-to-all with uneven parts; all-gather and reduce-scatter of tokens.
DispatchedRows dispatch_all_to_all(const TokenChoice& choice, Communicator& ranks);
DispatchedRows dispatch_all_gather(const TokenChoice& choice, Communicator& ranks);

/// For the methods: the expert of each arriving row, [R, 1] int32, from the numbers of rows by rank and expert, [ranks, own]
/// int64.
at::Tensor experts_of_rows(const at::Tensor& counts);

}  // namespace stepforge
