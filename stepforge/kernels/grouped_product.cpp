// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/grouped_product.h"

#include <functional>

#include <ATen/ops/matmul.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_offsets(std::span<const int64_t> offsets, int64_t rows) {
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != rows)
    throw Error(format("grouped product: offsets must run from 0 to the number of rows, {}", rows));
  for (size_t e = 1; e < offsets.size(); ++e) {
    if (offsets[e] < offsets[e - 1]) {
      throw Error(format("grouped product: offset {} of expert {} is below that of the expert before, {}",
                         offsets[e], e, offsets[e - 1]));
    }
  }
}

/// Calls `body` with each expert that has rows, and their range.
void each_expert(std::span<const int64_t> offsets,
                 const std::function<void(int64_t expert, int64_t begin, int64_t end)>& body) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] < offsets[e + 1]) body(static_cast<int64_t>(e), offsets[e], offsets[e + 1]);
}

int64_t experts_of(std::span<const int64_t> offsets) {
  return static_cast<int64_t>(offsets.size()) - 1;
}

}  // namespace

void grouped_product(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out) {
  check_shape(x, "grouped_product x", {x.size(0), x.size(1)});
  check_offsets(offsets, x.size(0));
  check_tensor(weights, "grouped_product weights", {experts_of(offsets), out.size(1), x.size(1)},
               x.scalar_type());
  check_tensor(out, "grouped_product out", {x.size(0), out.size(1)}, x.scalar_type());
  pick(&KernelTable::grouped_product, x)(x, weights, offsets, out);
}

void grouped_input_gradient(const at::Tensor& grad_out, const at::Tensor& weights,
                            std::span<const int64_t> offsets, const at::Tensor& grad_x) {
  check_shape(grad_out, "grouped_input_gradient grad_out", {grad_out.size(0), grad_out.size(1)});
  check_offsets(offsets, grad_out.size(0));
  check_tensor(weights, "grouped_input_gradient weights",
               {experts_of(offsets), grad_out.size(1), grad_x.size(1)}, grad_out.scalar_type());
  check_tensor(grad_x, "grouped_input_gradient grad_x", {grad_out.size(0), grad_x.size(1)},
               grad_out.scalar_type());
  pick(&KernelTable::grouped_input_gradient, grad_out)(grad_out, weights, offsets, grad_x);
}

void grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                             std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                             bool accumulate) {
  check_shape(grad_out, "grouped_weight_gradient grad_out", {grad_out.size(0), grad_out.size(1)});
  check_offsets(offsets, grad_out.size(0));
  check_tensor(x, "grouped_weight_gradient x", {grad_out.size(0), x.size(1)}, grad_out.scalar_type());
  check_tensor(grad_weights, "grouped_weight_gradient grad_weights",
               {experts_of(offsets), grad_out.size(1), x.size(1)}, compute_type(x));
  pick(&KernelTable::grouped_weight_gradient, x)(grad_out, x, offsets, grad_weights, accumulate);
}

void reference::grouped_product(const at::Tensor& x, const at::Tensor& weights,
                                std::span<const int64_t> offsets, const at::Tensor& out) {
  each_expert(offsets, [&](int64_t expert, int64_t begin, int64_t end) {
    out.slice(0, begin, end).copy_(at::matmul(x.slice(0, begin, end), weights.select(0, expert).t()));
  });
}

void reference::grouped_input_gradient(const at::Tensor& grad_out, const at::Tensor& weights,
                                       std::span<const int64_t> offsets, const at::Tensor& grad_x) {
  reference::grouped_product(grad_out, weights.transpose(1, 2), offsets, grad_x);
}

void reference::grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                                        std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                                        bool accumulate) {
  if (!accumulate) grad_weights.zero_();
  each_expert(offsets, [&](int64_t expert, int64_t begin, int64_t end) {
    grad_weights.select(0, expert).add_(
        at::matmul(grad_out.slice(0, begin, end).t(), x.slice(0, begin, end)));
  });
}

}  // namespace stepforge
