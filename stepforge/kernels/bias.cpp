// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/bias.h"

#include <ATen/TensorOperators.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void bias_forward(const at::Tensor& x, const at::Tensor& bias) {
  check_shape(x, "bias x", {x.size(0), x.size(1)});
  check_shape(bias, "bias", {x.size(1)});
  pick(&KernelTable::bias_forward, x)(x, bias);
}

void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias) {
  check_shape(grad, "bias grad", {grad.size(0), grad.size(1)});
  check_tensor(grad_bias, "bias grad_bias", {grad.size(1)}, compute_type(grad));
  pick(&KernelTable::bias_backward, grad)(grad, grad_bias);
}

void reference::bias_forward(const at::Tensor& x, const at::Tensor& bias) {
  const at::ScalarType type = compute_type(x);
  x.copy_(x.to(type) + bias.to(type));
}

void reference::bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias) {
  grad_bias.copy_(grad.to(compute_type(grad)).sum(0));
}

}  // namespace stepforge
