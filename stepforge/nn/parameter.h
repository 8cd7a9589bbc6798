// SPDX-License-Identifier: Apache-2.0
// A parameter as layers see it: a persistent leaf tensor in the compute dtype, and a view of the unit's flat
// fp32 gradient, to which backward passes add.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/parameter.h"

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
  /// Completes the gradient after a backward: adds what autograd has left at value(), because tensor operations
  /// used it, and zeroes a gradient that nothing has written since start_gradient(). For trained parameters.
  void finish_gradient();
  /// Whether the current gradient has been written, so that further writes add to it.
  bool written() const { return written_; }
  void mark_written() { written_ = true; }

  /// gradient = `value` of any floating dtype, or += if written().
  void add_gradient(const at::Tensor& value);

  /// gradient = left^T right, or += if written(): the weight gradient of a linear layer. left [tokens, rows],
  /// right [tokens, columns].
  void add_product(const at::Tensor& left, const at::Tensor& right);

 private:
  const ParameterSpec* spec_ = nullptr;
  at::Tensor value_;
  at::Tensor gradient_;
  bool written_ = false;
};

}  // namespace stepforge
