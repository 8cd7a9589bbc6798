// SPDX-License-Identifier: Apache-2.0
// Rows of tokens on their way to the ranks that have their experts (dispatch), and results on their way back (combine). The
// backward of each is the other one. All are collectives of the ranks of the experts.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/kernels/expert_rows.h"

namespace stepforge {

/// Where the rows of a micro-batch went, and how many came. Outgoing rows are sorted by expert, so those for one rank are
/// together; those that come are in the order of the ranks that sent them.
struct TokenRoutes {
  ExpertRows sent;                     ///< the rows of this rank's tokens
  std::vector<int64_t> outgoing_rows;  ///< to each rank
  std::vector<int64_t> incoming_rows;  ///< from each rank
  int64_t received = 0;                ///< the sum of incoming_rows
};

/// The rows that ranks have sent for this rank's experts.
struct DispatchedRows {
  at::Tensor rows;     ///< [R, D]
  at::Tensor weights;  ///< [R, 1] fp32
  at::Tensor experts;  ///< [R, 1] int32, among those of this rank
  TokenRoutes routes;
};

/// Sends a row for each of the k experts of each token [N, D] to the rank that has the expert, with its weight of
/// `weights` [N, k]. indices: [N, k] int32 of `experts` experts, which are spread evenly over `ranks` in their order. Throws
/// PeerError, and Error if there is no such expert or they cannot be spread evenly.
DispatchedRows dispatch_tokens(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& indices,
                               int64_t experts, Communicator& ranks);

/// Returns results [R, D] of the rows that came: of each token the sum of its own, [N, D].
at::Tensor combine_results(const at::Tensor& results, const TokenRoutes& routes, Communicator& ranks);

/// The gradient of the results, [R, D], for that of the sums, [N, D].
at::Tensor combine_gradient(const at::Tensor& gradient, const TokenRoutes& routes, Communicator& ranks);

struct TokenGradients {
  at::Tensor tokens;   ///< [N, D]
  at::Tensor weights;  ///< [N, k]
};

/// The gradients of tokens and weights, for those of the rows that came, [R, D], and of their weights, [R, 1].
TokenGradients dispatch_gradient(const at::Tensor& rows, const at::Tensor& weights, const TokenRoutes& routes,
                                 Communicator& ranks);

}  // namespace stepforge
