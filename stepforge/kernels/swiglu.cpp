// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/swiglu.h"

#include <cmath>
#include <numbers>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

/// out: the result or its gradient.
void check_gated(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out,
                 std::string_view name_of_out) {
  const bool weighted = rows.weights.defined();
  const int64_t count = weighted ? rows.weights.numel() : gate_up.size(0);
  check_shape(gate_up, "swiglu gate_up", {count, gate_up.size(1)});
  check_tensor(out, name_of_out, {count, gate_up.size(1) / 2}, gate_up.scalar_type());
  if (!weighted) return;
  check_tensor(rows.weights, "swiglu weights", {rows.weights.size(0), rows.weights.size(1)},
               compute_type(gate_up));
  check_tensor(rows.slots, "swiglu slots", {count}, at::kInt);
}

void run_forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out) {
  check_gated(gate_up, rows, out, "swiglu out");
  pick(&KernelTable::gated_forward, gate_up)(gate_up, rows, out);
}

/// grad_weights: of rows with weights.
void run_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
                  const at::Tensor& grad_gate_up, const at::Tensor& grad_weights) {
  check_gated(gate_up, rows, grad_out, "swiglu grad_out");
  check_tensor(grad_gate_up, "swiglu grad_gate_up", gate_up.sizes(), gate_up.scalar_type());
  if (rows.weights.defined())
    check_tensor(grad_weights, "swiglu grad_weights", rows.weights.sizes(), rows.weights.scalar_type());
  pick(&KernelTable::gated_backward, gate_up)(grad_out, gate_up, rows, grad_gate_up, grad_weights);
}

/// The parts of the activation, [N, F] of the compute type.
struct GatedParts {
  at::Tensor gate;
  at::Tensor up;
  at::Tensor s;
  at::Tensor inner;      ///< s' / (s (1 - s)); undefined if 1
  at::Tensor gate_open;  ///< where no limit holds; undefined without limits
  at::Tensor up_open;
  at::Tensor weight;  ///< [N, 1]; undefined if all are 1

  GatedParts(const at::Tensor& gate_up, const GatedRows& rows) {
    const at::Tensor wide = gate_up.to(compute_type(gate_up));
    if (rows.weights.defined()) weight = at::index_select(rows.weights.flatten(), 0, rows.slots).unsqueeze(1);
    const auto parts = rows.clamped ? wide.view({wide.size(0), -1, 2}).unbind(2) : wide.chunk(2, -1);
    gate = parts[0];
    up = parts[1];
    if (rows.clamped) {
      const auto [limit, alpha] = *rows.clamped;
      gate_open = gate.le(limit);
      up_open = up.abs().le(limit);
      gate = gate.clamp_max(limit);
      up = up.clamp(-limit, limit) + 1;
      s = at::sigmoid(gate * alpha);
      inner = at::full({}, alpha, gate.options());
    } else if (rows.activation == Activation::silu) {
      s = at::sigmoid(gate);
    } else {
      const double root = std::sqrt(2.0 / std::numbers::pi);
      s = (at::tanh((gate + gate.pow(3) * 0.044715) * root) + 1) * 0.5;
      inner = (gate.square() * (3 * 0.044715) + 1) * (2 * root);
    }
  }

  at::Tensor weighted(const at::Tensor& values) const { return weight.defined() ? values * weight : values; }
  at::Tensor hidden() const { return gate * s * up; }
  at::Tensor derivative() const {
    const at::Tensor outer = gate * s * (1 - s);
    return s + (inner.defined() ? outer * inner : outer);
  }
};

}  // namespace

void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out, Activation activation) {
  run_forward(gate_up, {.activation = activation}, out);
}

void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
                     Activation activation) {
  run_backward(grad_out, gate_up, {.activation = activation}, grad_gate_up, {});
}

void expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                           const at::Tensor& out) {
  run_forward(gate_up, {.weights = weights, .slots = slots}, out);
}

void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& grad_gate_up,
                            const at::Tensor& grad_weights) {
  run_backward(grad_out, gate_up, {.weights = weights, .slots = slots}, grad_gate_up, grad_weights);
}

void clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                            const ClampedSwiglu& activation, const at::Tensor& out) {
  run_forward(gate_up, {.clamped = activation, .weights = weights, .slots = slots}, out);
}

void clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                             const at::Tensor& slots, const ClampedSwiglu& activation,
                             const at::Tensor& grad_gate_up, const at::Tensor& grad_weights) {
  run_backward(grad_out, gate_up, {.clamped = activation, .weights = weights, .slots = slots}, grad_gate_up,
               grad_weights);
}

void reference::gated_forward(const at::Tensor& gate_up, const GatedRows& rows, const at::Tensor& out) {
  const GatedParts parts(gate_up, rows);
  out.copy_(parts.weighted(parts.hidden()));
}

void reference::gated_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const GatedRows& rows,
                               const at::Tensor& grad_gate_up, const at::Tensor& grad_weights) {
  const GatedParts parts(gate_up, rows);
  const at::Tensor grad = grad_out.to(parts.gate.scalar_type());
  const at::Tensor weighted = parts.weighted(grad);
  const at::Tensor grad_gate = weighted * parts.up * parts.derivative();
  const at::Tensor grad_up = weighted * parts.gate * parts.s;
  if (rows.weights.defined())
    grad_weights.view({-1}).index_copy_(0, rows.slots.to(at::kLong), (grad * parts.hidden()).sum(1));
  grad_gate_up.copy_(
      rows.clamped
          ? at::stack({grad_gate * parts.gate_open, grad_up * parts.up_open}, 2).view(gate_up.sizes())
          : at::cat({grad_gate, grad_up}, -1));
}

}  // namespace stepforge
