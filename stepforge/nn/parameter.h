// SPDX-License-Identifier: Apache-2.0
// A parameter as layers see it: a persistent leaf tensor in the compute dtype, and a view of the unit's flat
// fp32 gradient, to which backward passes add.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/parameter.h"
#include "stepforge/nn/gradient_queue.h"

namespace stepforge {

/// Owned by the unit's storage (storage/), which also binds the leaf's memory. Layers only read value() and
/// add gradients, or leave that to autograd.
class Parameter {
 public:
  Parameter() = default;
  /// `spec` must outlive it.
  Parameter(const ParameterSpec* spec, at::Tensor value, at::Tensor gradient)
      : spec_(spec), value_(std::move(value)), gradient_(std::move(gradient)) {}

  const ParameterSpec& spec() const { return *spec_; }
  /// [spec().shape] in the compute dtype: a leaf, which requires grad if the parameter is trained.
  const at::Tensor& value() const { return value_; }
  /// [spec().shape] fp32, a view of the unit's gradient; undefined if the parameter is frozen.
  const at::Tensor& gradient() const { return gradient_; }
  bool trained() const { return gradient_.defined(); }

  /// Starts a new gradient: the next write overwrites the old one instead of adding to it.
  void start_gradient() { written_ = false; }
  /// Completes the gradient after a backward: contributes what autograd has left at value(), because tensor
  /// operations used it, and zeroes a gradient that nothing has written since start_gradient(). For trained
  /// parameters.
  void finish_gradient();

  /// Until the next call all that write() gets goes to `queue`; null: it is done at once.
  void defer_to(GradientQueue* queue) { queue_ = queue; }
  bool deferred() const { return queue_ != nullptr; }
  /// Every contribution to the gradient comes here, of a trained parameter only: the first one since
  /// start_gradient() overwrites, the others add.
  void write(GradientWrite write);
  /// The same, at once in any case.
  void write_now(const GradientWrite& write);

  /// Contributes `value`, of any floating dtype. It must not change afterwards.
  void add_gradient(const at::Tensor& value);

  /// Contributes left^T right: the weight gradient of a linear layer. left [tokens, rows], right [tokens,
  /// columns]; they must not change afterwards.
  void add_product(const at::Tensor& left, const at::Tensor& right);

 private:
  const ParameterSpec* spec_ = nullptr;
  at::Tensor value_;
  at::Tensor gradient_;
  GradientQueue* queue_ = nullptr;
  bool written_ = false;  ///< since start_gradient()
};

}  // namespace stepforge
