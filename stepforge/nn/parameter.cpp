// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/parameter.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void Parameter::finish_gradient() {
  const at::NoGradGuard no_grad;
  if (value_.grad().defined()) add_gradient(std::exchange(value_.mutable_grad(), at::Tensor()));
  if (!written_) gradient_.zero_();
  written_ = true;
}

void Parameter::add_gradient(const at::Tensor& value) {
  write_or_add(gradient_, value, /*accumulate=*/written_);
  written_ = true;
}

void Parameter::add_product(const at::Tensor& left, const at::Tensor& right) {
  if (left.scalar_type() == at::kFloat) {
    if (written_) {
      at::addmm_out(gradient_, gradient_, left.t(), right);
    } else {
      at::mm_out(gradient_, left.t(), right);
    }
  } else {
    // The CPU has no bf16 product with an fp32 result.
    return add_gradient(at::mm(left.t(), right));
  }
  written_ = true;
}

}  // namespace stepforge
