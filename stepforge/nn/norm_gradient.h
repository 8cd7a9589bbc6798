// SPDX-License-Identifier: Apache-2.0
// The gradient of the weight of a norm. Not public.
#pragma once

#include <ATen/ops/empty.h>

#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// A norm's backward computes it together with the gradient of its input, so in memory of its own: that of the
/// parameter may be written later.
class NormGradient {
 public:
  /// `summed`: the ranks that have the other shares of the gradient; null if there are none.
  NormGradient(Parameter& weight, const TensorExchange* summed)
      : weight_(weight),
        summed_(summed),
        target_(at::empty({weight.value().size(0)},
                          weight.value().options().dtype(compute_type(weight.value())))) {}

  /// The backward overwrites it.
  const at::Tensor& target() const { return target_; }

  /// Call it when target() has been written.
  void finish() {
    if (!weight_.trained()) return;
    if (summed_ != nullptr) summed_->sum(target_);
    weight_.add_gradient(target_);
  }

 private:
  Parameter& weight_;
  const TensorExchange* summed_;
  at::Tensor target_;
};

}  // namespace stepforge
