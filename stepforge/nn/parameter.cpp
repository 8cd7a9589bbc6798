// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/parameter.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void Parameter::finish_gradient() {
  if (value_.grad().defined()) add_gradient(std::exchange(value_.mutable_grad(), at::Tensor()));
  write([](const at::Tensor& gradient, bool accumulate) {
    if (!accumulate) gradient.zero_();
  });
}

void Parameter::write(GradientWrite write) {
  if (deferred()) return queue_->add(*this, std::move(write));
  write_now(write);
}

void Parameter::write_now(const GradientWrite& write) {
  const at::NoGradGuard no_grad;
  write(gradient_, /*accumulate=*/written_);
  written_ = true;
}

void Parameter::add_gradient(const at::Tensor& value) {
  write([value](const at::Tensor& gradient, bool accumulate) { write_or_add(gradient, value, accumulate); });
}

void Parameter::add_product(const at::Tensor& left, const at::Tensor& right) {
  // Detached: a queue must not keep the graph that made them.
  write([left = left.detach(), right = right.detach()](const at::Tensor& gradient, bool accumulate) {
    linear_weight_gradient(left, right, gradient, accumulate);
  });
}

}  // namespace stepforge
