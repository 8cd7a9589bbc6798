// SPDX-License-Identifier: Apache-2.0
// Where the backward of a norm writes the gradient of its weight. Not public.
#pragma once

#include <ATen/ops/empty.h>

#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// In place, unless the weight is frozen or the gradient is summed over ranks: then in memory of its own.
class NormGradient {
 public:
  /// `summed`: the ranks that have the other shares of the gradient; null if there are none.
  NormGradient(Parameter& weight, const TensorExchange* summed)
      : weight_(weight), summed_(weight.trained() ? summed : nullptr) {
    const bool in_place = weight.trained() && summed_ == nullptr;
    accumulate_ = in_place && weight.written();
    target_ = in_place ? weight.gradient() : at::empty({weight.value().size(0)}, at::kFloat);
  }

  const at::Tensor& target() const { return target_; }
  /// Whether to add to target() instead of overwriting it.
  bool accumulate() const { return accumulate_; }

  /// Call it when target() has been written.
  void finish() {
    if (!weight_.trained()) return;
    if (summed_ == nullptr) return weight_.mark_written();
    summed_->sum(target_);
    weight_.add_gradient(target_);
  }

 private:
  Parameter& weight_;
  const TensorExchange* summed_;
  at::Tensor target_;
  bool accumulate_ = false;
};

}  // namespace stepforge
