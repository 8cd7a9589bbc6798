// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/gated_add.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_gated_add(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                     const at::Tensor& out) {
  check_shape(y, "gated_add y", {y.size(0), y.size(1)});
  check_tensor(x, "gated_add x", y.sizes(), y.scalar_type());
  check_tensor(gate, "gated_add gate", {y.size(0)}, compute_type(y));
  check_tensor(out, "gated_add out", y.sizes(), y.scalar_type());
}

}  // namespace

void gated_add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                       const at::Tensor& out) {
  check_gated_add(x, y, gate, out);
  pick(&KernelTable::gated_add_forward, y)(x, y, gate, out);
}

void gated_add_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                        const at::Tensor& grad_y, const at::Tensor& grad_gate) {
  check_gated_add(grad_out, y, gate, grad_y);
  check_tensor(grad_gate, "gated_add grad_gate", gate.sizes(), gate.scalar_type());
  pick(&KernelTable::gated_add_backward, y)(grad_out, y, gate, grad_y, grad_gate);
}

void reference::gated_add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                  const at::Tensor& out) {
  const at::ScalarType type = compute_type(y);
  out.copy_(x.to(type) + at::sigmoid(gate).unsqueeze(1) * y.to(type));
}

void reference::gated_add_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                                   const at::Tensor& grad_y, const at::Tensor& grad_gate) {
  const at::Tensor grad = grad_out.to(compute_type(y));
  const at::Tensor open = at::sigmoid(gate);
  grad_gate.copy_((grad * y.to(grad.scalar_type())).sum(1) * open * (1 - open));
  grad_y.copy_(grad * open.unsqueeze(1));
}

}  // namespace stepforge
