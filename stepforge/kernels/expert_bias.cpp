// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_bias.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_expert_bias(const at::Tensor& rows, std::span<const int64_t> offsets, const at::Tensor& bias) {
  if (rows.dim() != 2 || rows.size(1) != bias.size(1) || rows.stride(1) != 1) {
    throw Error(format("expert_bias: rows of {} elements, but biases of {}; rows must be contiguous each",
                       rows.size(-1), bias.size(1)));
  }
  check_tensor(bias, "expert_bias bias", {std::ssize(offsets) - 1, bias.size(1)}, compute_type(rows));
  if (offsets.front() != 0 || offsets.back() != rows.size(0))
    throw Error(format("expert_bias: offsets from {} to {} for {} rows", offsets.front(), offsets.back(),
                       rows.size(0)));
}

void check_factors(const at::Tensor& rows, const RowFactors& factors) {
  if (!factors.weights.defined()) return;
  check_shape(factors.weights, "expert_bias weights", factors.weights.sizes());
  check_tensor(factors.slots, "expert_bias slots", {rows.size(0)}, at::kInt);
}

/// [R, 1]
at::Tensor factors_of(const at::Tensor& rows, const RowFactors& factors) {
  if (!factors.weights.defined())
    return at::ones({rows.size(0), 1}, rows.options().dtype(compute_type(rows)));
  return at::index_select(factors.weights.flatten(), 0, factors.slots).unsqueeze(1);
}

}  // namespace

void add_expert_bias(const at::Tensor& rows, std::span<const int64_t> offsets, const at::Tensor& bias,
                     const RowFactors& factors) {
  check_expert_bias(rows, offsets, bias);
  check_factors(rows, factors);
  pick(&KernelTable::add_expert_bias, rows)(rows, offsets, bias, factors);
}

void expert_bias_gradient(const at::Tensor& grad, std::span<const int64_t> offsets, const RowFactors& factors,
                          const at::Tensor& grad_bias) {
  check_expert_bias(grad, offsets, grad_bias);
  check_factors(grad, factors);
  pick(&KernelTable::expert_bias_gradient, grad)(grad, offsets, factors, grad_bias);
}

void add_factor_gradients(const at::Tensor& grad, std::span<const int64_t> offsets, const at::Tensor& bias,
                          const at::Tensor& slots, const at::Tensor& grad_weights) {
  check_expert_bias(grad, offsets, bias);
  check_factors(grad, {grad_weights, slots});
  pick(&KernelTable::add_factor_gradients, grad)(grad, offsets, bias, slots, grad_weights);
}

void reference::add_expert_bias(const at::Tensor& rows, std::span<const int64_t> offsets,
                                const at::Tensor& bias, const RowFactors& factors) {
  const at::Tensor factor = factors_of(rows, factors);
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const at::Tensor own = rows.slice(0, offsets[e], offsets[e + 1]);
    own.copy_(own.to(bias.scalar_type()) +
              factor.slice(0, offsets[e], offsets[e + 1]) * bias.select(0, static_cast<int64_t>(e)));
  }
}

void reference::expert_bias_gradient(const at::Tensor& grad, std::span<const int64_t> offsets,
                                     const RowFactors& factors, const at::Tensor& grad_bias) {
  const at::Tensor terms = grad.to(grad_bias.scalar_type()) * factors_of(grad, factors);
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    grad_bias.select(0, static_cast<int64_t>(e)).copy_(terms.slice(0, offsets[e], offsets[e + 1]).sum(0));
}

void reference::add_factor_gradients(const at::Tensor& grad, std::span<const int64_t> offsets,
                                     const at::Tensor& bias, const at::Tensor& slots,
                                     const at::Tensor& grad_weights) {
  const at::Tensor wide = grad.to(bias.scalar_type());
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const at::Tensor products =
        (wide.slice(0, offsets[e], offsets[e + 1]) * bias.select(0, static_cast<int64_t>(e))).sum(1);
    grad_weights.view({-1}).index_add_(0, slots.slice(0, offsets[e], offsets[e + 1]).to(at::kLong), products);
  }
}

}  // namespace stepforge
