// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/linear_product.h"

#include <ATen/ops/mm.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  check_shape(x, "product x", {x.size(0), weight.size(1)});
  check_tensor(weight, "product weight", weight.sizes(), x.scalar_type());
  check_tensor(out, "product out", {x.size(0), weight.size(0)}, x.scalar_type());
  pick(&KernelTable::linear_product, x)(x, weight, out);
}

void reference::linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  at::Tensor result = out;
  at::mm_out(result, x, weight.t());
}

}  // namespace stepforge
