// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/parameter.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "stepforge/kernels/tensor_check.h"

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
    write_or_add(gradient_, at::mm(left.t(), right), /*accumulate=*/written_);
  }
  written_ = true;
}

}  // namespace stepforge
