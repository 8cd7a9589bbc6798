// SPDX-License-Identifier: Apache-2.0
// Slices of the tokens that pass between ranks while matrix products of those at hand are computed (asynchronous
// tensor parallelism; Wang et al., ASPLOS 2023, call it a decomposed, overlapped collective). Each slice goes straight
// from its rank to every other one. No autograd.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/divided.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// The tokens of a slice. Throws Error unless `tokens` can be divided equally.
int64_t slice_size(int64_t tokens, const TensorExchange& exchange);

/// Tensors on their way. The destructor waits for them: they must live as long.
class Passes {
 public:
  explicit Passes(const TensorExchange& exchange) : exchange_(exchange) {}
  ~Passes();
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  void start(const at::Tensor& outgoing, const at::Tensor& incoming, int64_t distance);
  /// Waits for the first one that was started and not yet waited for. Throws PeerError.
  void wait_next();

 private:
  const TensorExchange& exchange_;
  std::vector<std::shared_future<void>> arrivals_;
  std::size_t waited_ = 0;
};

/// The slices [n, width] of all ranks, of which this rank has one; they are on their way as soon as this exists.
class ArrivingSlices {
 public:
  ArrivingSlices(const at::Tensor& own, const TensorExchange& exchange);
  /// Calls `use` with each slice and the number of its first token, this rank's first and the others as they arrive.
  void each(const std::function<void(const at::Tensor& slice, int64_t begin)>& use);
  /// Of all slices.
  int64_t tokens() const { return whole_.size(0); }
  /// The slices of all ranks in their order, when all have arrived.
  const at::Tensor& all();

 private:
  at::Tensor own_;
  const TensorExchange& exchange_;
  at::Tensor whole_;
  int64_t arrived_ = 1;
  Passes passes_;
};

/// The sum over the ranks of each one's share of this rank's slice.
class SumOfSlices {
 public:
  /// `sum` [n, width] is written by start() and finish().
  SumOfSlices(const at::Tensor& sum, const TensorExchange& exchange);
  /// Calls `write_share` for the tokens of each slice, this rank's last, and sends the result to the rank of the slice.
  void start(const std::function<void(int64_t begin, const at::Tensor& share)>& write_share);
  /// When the shares of all ranks have arrived.
  void finish();

 private:
  at::Tensor sum_;
  const TensorExchange& exchange_;
  std::vector<at::Tensor> outgoing_;
  std::vector<at::Tensor> shares_;  ///< of this rank's slice, by rank
  Passes passes_;
};

// Products of a linear layer whose slices pass meanwhile; `out` is written, or not wanted if it is undefined.

/// x weight^T of all tokens; x is this rank's slice.
void product_of_slices(const at::Tensor& x, const at::Tensor& weight, const TensorExchange& exchange,
                       const at::Tensor& out);
/// Its backward: x arrives beside the product for its gradient, the sum of which leaves beside that for the weight's.
void product_of_slices_backward(const at::Tensor& gradient, const at::Tensor& x, Parameter& weight,
                                const TensorExchange& exchange, const at::Tensor& out);

/// This rank's slice of the sum of x weight^T over the ranks.
void product_to_slice(const at::Tensor& x, const at::Tensor& weight, const TensorExchange& exchange,
                      const at::Tensor& out);
/// Its backward; `gradient` is that of the slice.
void product_to_slice_backward(const at::Tensor& gradient, const at::Tensor& x, Parameter& weight,
                               const TensorExchange& exchange, const at::Tensor& out);

}  // namespace stepforge
