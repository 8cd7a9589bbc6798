// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/clamped_swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_clamped_swiglu(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                          const at::Tensor& out) {
  check_shape(gate_up, "clamped_swiglu gate_up", {weights.numel(), gate_up.size(1)});
  check_tensor(weights, "clamped_swiglu weights", {weights.size(0), weights.size(1)}, compute_type(gate_up));
  check_tensor(slots, "clamped_swiglu slots", {gate_up.size(0)}, at::kInt);
  check_tensor(out, "clamped_swiglu out", {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type());
}

/// The parts of the activation, [R, F] of the compute type.
struct ClampedParts {
  at::Tensor raw_gate;
  at::Tensor raw_up;
  at::Tensor gate;
  at::Tensor up;
  at::Tensor sigmoid;
  at::Tensor weight;  ///< [R, 1]

  ClampedParts(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
               const ClampedSwiglu& activation) {
    const at::Tensor pairs = gate_up.to(compute_type(gate_up)).view({gate_up.size(0), -1, 2});
    raw_gate = pairs.select(2, 0);
    raw_up = pairs.select(2, 1);
    gate = raw_gate.clamp_max(activation.limit);
    up = raw_up.clamp(-activation.limit, activation.limit);
    sigmoid = at::sigmoid(gate * activation.alpha);
    weight = at::index_select(weights.flatten(), 0, slots).unsqueeze(1);
  }

  at::Tensor hidden() const { return (up + 1) * gate * sigmoid; }
};

}  // namespace

void clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                            const ClampedSwiglu& activation, const at::Tensor& out) {
  check_clamped_swiglu(gate_up, weights, slots, out);
  pick(&KernelTable::clamped_swiglu_forward, gate_up)(gate_up, weights, slots, activation, out);
}

void clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                             const at::Tensor& slots, const ClampedSwiglu& activation,
                             const at::Tensor& grad_gate_up, const at::Tensor& grad_weights,
                             const at::Tensor& out) {
  check_clamped_swiglu(gate_up, weights, slots, out);
  check_tensor(grad_out, "clamped_swiglu grad_out", out.sizes(), gate_up.scalar_type());
  check_tensor(grad_gate_up, "clamped_swiglu grad_gate_up", gate_up.sizes(), gate_up.scalar_type());
  check_tensor(grad_weights, "clamped_swiglu grad_weights", weights.sizes(), weights.scalar_type());
  pick(&KernelTable::clamped_swiglu_backward, gate_up)(grad_out, gate_up, weights, slots, activation,
                                                       grad_gate_up, grad_weights, out);
}

void reference::clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights,
                                       const at::Tensor& slots, const ClampedSwiglu& activation,
                                       const at::Tensor& out) {
  const ClampedParts parts(gate_up, weights, slots, activation);
  out.copy_(parts.hidden() * parts.weight);
}

void reference::clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                        const at::Tensor& weights, const at::Tensor& slots,
                                        const ClampedSwiglu& activation, const at::Tensor& grad_gate_up,
                                        const at::Tensor& grad_weights, const at::Tensor& out) {
  const ClampedParts parts(gate_up, weights, slots, activation);
  const at::Tensor grad = grad_out.to(parts.gate.scalar_type());
  const at::Tensor hidden = parts.hidden();
  grad_weights.view({-1}).index_copy_(0, slots.to(at::kLong), (grad * hidden).sum(1));
  const at::Tensor weighted = grad * parts.weight;
  const at::Tensor slope = parts.sigmoid * (1 + activation.alpha * parts.gate * (1 - parts.sigmoid));
  const at::Tensor gate = weighted * (parts.up + 1) * slope * parts.raw_gate.le(activation.limit);
  const at::Tensor up = weighted * parts.gate * parts.sigmoid * parts.raw_up.abs().le(activation.limit);
  grad_gate_up.copy_(at::stack({gate, up}, 2).view(gate_up.sizes()));
  out.copy_(hidden * parts.weight);
}

}  // namespace stepforge
