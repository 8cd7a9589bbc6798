// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/swiglu.h"

#include <cmath>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

/// s(g) and its derivative.
struct Slope {
  at::Tensor s;
  at::Tensor derivative;
};

Slope slope_of(const at::Tensor& gate, Activation activation) {
  if (activation == Activation::silu) {
    const at::Tensor s = at::sigmoid(gate);
    return {s, s * (1 - s)};
  }
  const double root = std::sqrt(2.0 / std::numbers::pi);
  const at::Tensor s = (at::tanh((gate + gate.pow(3) * 0.044715) * root) + 1) * 0.5;
  return {s, s * (1 - s) * (gate.square() * (3 * 0.044715) + 1) * (2 * root)};
}

}  // namespace

void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out, Activation activation) {
  check_shape(gate_up, "swiglu gate_up", {gate_up.size(0), gate_up.size(1)});
  check_tensor(out, "swiglu out", {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
  pick(&KernelTable::swiglu_forward, gate_up)(gate_up, out, activation);
}

void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
                     Activation activation) {
  check_shape(gate_up, "swiglu gate_up", {gate_up.size(0), gate_up.size(1)});
  check_tensor(grad_out, "swiglu grad_out", {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
  check_tensor(grad_gate_up, "swiglu grad_gate_up", gate_up.sizes(), gate_up.scalar_type());
  pick(&KernelTable::swiglu_backward, gate_up)(grad_out, gate_up, grad_gate_up, activation);
}

void reference::swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out, Activation activation) {
  const auto halves = gate_up.to(compute_type(gate_up)).chunk(2, -1);
  out.copy_(halves[0] * slope_of(halves[0], activation).s * halves[1]);
}

void reference::swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                const at::Tensor& grad_gate_up, Activation activation) {
  const auto halves = gate_up.to(compute_type(gate_up)).chunk(2, -1);
  const at::Tensor& gate = halves[0];
  const at::Tensor grad = grad_out.to(gate.scalar_type());
  const auto [s, derivative] = slope_of(gate, activation);
  const at::Tensor grad_gate = grad * halves[1] * (s + gate * derivative);
  grad_gate_up.copy_(at::cat({grad_gate, grad * gate * s}, -1));
}

}  // namespace stepforge
