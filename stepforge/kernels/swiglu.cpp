// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out) {
  check_shape(gate_up, "swiglu gate_up", {gate_up.size(0), gate_up.size(1)});
  check_tensor(out, "swiglu out", {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
  if (has_cpu_kernel(gate_up)) {
    cpu::swiglu_forward(gate_up, out);
  } else {
    swiglu_forward_reference(gate_up, out);
  }
}

void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up) {
  check_shape(gate_up, "swiglu gate_up", {gate_up.size(0), gate_up.size(1)});
  check_tensor(grad_out, "swiglu grad_out", {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
  check_tensor(grad_gate_up, "swiglu grad_gate_up", gate_up.sizes(), gate_up.scalar_type());
  if (has_cpu_kernel(gate_up)) {
    cpu::swiglu_backward(grad_out, gate_up, grad_gate_up);
  } else {
    swiglu_backward_reference(grad_out, gate_up, grad_gate_up);
  }
}

void swiglu_forward_reference(const at::Tensor& gate_up, const at::Tensor& out) {
  const auto halves = gate_up.to(compute_type(gate_up)).chunk(2, -1);
  out.copy_(halves[0] * at::sigmoid(halves[0]) * halves[1]);
}

void swiglu_backward_reference(const at::Tensor& grad_out, const at::Tensor& gate_up,
                               const at::Tensor& grad_gate_up) {
  const auto halves = gate_up.to(compute_type(gate_up)).chunk(2, -1);
  const at::Tensor& gate = halves[0];
  const at::Tensor grad = grad_out.to(gate.scalar_type());
  const at::Tensor sigmoid = at::sigmoid(gate);
  const at::Tensor grad_gate = grad * halves[1] * sigmoid * (1 + gate * (1 - sigmoid));
  grad_gate_up.copy_(at::cat({grad_gate, grad * gate * sigmoid}, -1));
}

}  // namespace stepforge
