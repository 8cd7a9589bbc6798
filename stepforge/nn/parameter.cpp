// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/parameter.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace stepforge {

void Parameter::add_product(const at::Tensor& left, const at::Tensor& right) {
  if (left.scalar_type() == at::kFloat) {
    if (written_) {
      at::addmm_out(gradient_, gradient_, left.t(), right);
    } else {
      at::mm_out(gradient_, left.t(), right);
    }
  } else {
    // The CPU has no bf16 product with an fp32 result.
    const at::Tensor product = at::mm(left.t(), right);
    if (written_) {
      gradient_.add_(product);
    } else {
      gradient_.copy_(product);
    }
  }
  written_ = true;
}

}  // namespace stepforge
