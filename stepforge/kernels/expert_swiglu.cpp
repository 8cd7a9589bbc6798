// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sigmoid.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_expert_swiglu(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                         const at::Tensor& out) {
  check_shape(gate_up, "expert_swiglu gate_up", {weights.numel(), gate_up.size(1)});
  check_tensor(weights, "expert_swiglu weights", {weights.size(0), weights.size(1)}, compute_type(gate_up));
  check_tensor(slots, "expert_swiglu slots", {gate_up.size(0)}, at::kInt);
  check_tensor(out, "expert_swiglu out", {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
}

/// [R, 1]
at::Tensor weights_of_rows(const at::Tensor& weights, const at::Tensor& slots) {
  return at::index_select(weights.flatten(), 0, slots).unsqueeze(1);
}

}  // namespace

void expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                           const at::Tensor& out) {
  check_expert_swiglu(gate_up, weights, slots, out);
  pick(&KernelTable::expert_swiglu_forward, gate_up)(gate_up, weights, slots, out);
}

void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& grad_gate_up,
                            const at::Tensor& grad_weights, const at::Tensor& out) {
  check_expert_swiglu(gate_up, weights, slots, out);
  check_tensor(grad_out, "expert_swiglu grad_out", out.sizes(), gate_up.scalar_type());
  check_tensor(grad_gate_up, "expert_swiglu grad_gate_up", gate_up.sizes(), gate_up.scalar_type());
  check_tensor(grad_weights, "expert_swiglu grad_weights", weights.sizes(), weights.scalar_type());
  pick(&KernelTable::expert_swiglu_backward, gate_up)(grad_out, gate_up, weights, slots, grad_gate_up,
                                                      grad_weights, out);
}

void reference::expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights,
                                      const at::Tensor& slots, const at::Tensor& out) {
  const auto halves = gate_up.to(compute_type(gate_up)).chunk(2, -1);
  out.copy_(halves[0] * at::sigmoid(halves[0]) * halves[1] * weights_of_rows(weights, slots));
}

void reference::expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                       const at::Tensor& weights, const at::Tensor& slots,
                                       const at::Tensor& grad_gate_up, const at::Tensor& grad_weights,
                                       const at::Tensor& out) {
  const auto halves = gate_up.to(compute_type(gate_up)).chunk(2, -1);
  const at::Tensor& gate = halves[0];
  const at::Tensor grad = grad_out.to(gate.scalar_type());
  const at::Tensor sigmoid = at::sigmoid(gate);
  const at::Tensor hidden = gate * sigmoid * halves[1];
  const at::Tensor weight = weights_of_rows(weights, slots);
  const at::Tensor weighted = grad * weight;
  grad_weights.view({-1}).index_copy_(0, slots.to(at::kLong), (grad * hidden).sum(1));
  grad_gate_up.copy_(
      at::cat({weighted * halves[1] * sigmoid * (1 + gate * (1 - sigmoid)), weighted * gate * sigmoid}, -1));
  out.copy_(hidden * weight);
}

}  // namespace stepforge
