// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/linear_product.h"

#include <algorithm>

#include <ATen/ops/addmm.h>
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

void linear_input_gradient(const at::Tensor& grad_out, const at::Tensor& weight, const at::Tensor& summand,
                           const at::Tensor& grad_x) {
  check_shape(grad_out, "product grad_out", {grad_out.size(0), weight.size(0)});
  check_tensor(weight, "product weight", weight.sizes(), grad_out.scalar_type());
  check_tensor(grad_x, "product grad_x", {grad_out.size(0), weight.size(1)}, grad_out.scalar_type());
  if (summand.defined()) check_tensor(summand, "product summand", grad_x.sizes(), grad_out.scalar_type());
  pick(&KernelTable::linear_input_gradient, grad_out)(grad_out, weight, summand, grad_x);
}

void linear_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& grad_weight,
                            bool accumulate) {
  check_shape(grad_out, "product grad_out", {x.size(0), grad_out.size(1)});
  check_tensor(x, "product x", x.sizes(), grad_out.scalar_type());
  check_tensor(grad_weight, "product grad_weight", {grad_out.size(1), x.size(1)},
               x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  pick(&KernelTable::linear_weight_gradient, x)(grad_out, x, grad_weight, accumulate);
}

void reference::linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  at::Tensor result = out;
  at::mm_out(result, x, weight.t());
}

void reference::linear_input_gradient(const at::Tensor& grad_out, const at::Tensor& weight,
                                      const at::Tensor& summand, const at::Tensor& grad_x) {
  at::Tensor result = grad_x;
  if (summand.defined())
    at::addmm_out(result, summand, grad_out, weight);
  else
    at::mm_out(result, grad_out, weight);
}

void reference::linear_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                                       const at::Tensor& grad_weight, bool accumulate) {
  at::Tensor result = grad_weight;
  if (x.scalar_type() != grad_weight.scalar_type()) {
    // libtorch has no bf16 product with an fp32 result.
    write_or_add(result, at::mm(grad_out.t(), x), accumulate);
  } else if (accumulate) {
    at::addmm_out(result, result, grad_out.t(), x);
  } else {
    at::mm_out(result, grad_out.t(), x);
  }
}

}  // namespace stepforge
