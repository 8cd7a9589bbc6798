// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/linear_product.h and grouped_product.h: gradients of weights, which are fp32 also if the factors are not. The
// references round such products to the type of the factors, and add them in a second pass.
#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "stepforge/cuda/plugin/kernels.h"

namespace stepforge::cuda_plugin {

namespace {

/// Products of this type have fp32 results only by the overloads with an output type, which exist for CUDA alone.
bool is_bf16(const at::Tensor& factor) {
  return factor.scalar_type() == at::kBFloat16;
}

/// sum = a^T b, or sum + a^T b. a: [N, m]; b: [N, n], both bf16; sum: [m, n] fp32.
void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum, bool accumulate) {
  at::Tensor result = sum;
  if (accumulate)
    at::addmm_out(result, result, a.t(), b, at::kFloat);
  else
    at::mm_out(result, a.t(), b, at::kFloat);
}

}  // namespace

void linear_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& grad_weight,
                            bool accumulate) {
  if (!is_bf16(x)) return reference::linear_weight_gradient(grad_out, x, grad_weight, accumulate);
  product(grad_out, x, grad_weight, accumulate);
}

void grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                             std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                             bool accumulate) {
  if (!is_bf16(x)) return reference::grouped_weight_gradient(grad_out, x, offsets, grad_weights, accumulate);
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const at::Tensor sum = grad_weights.select(0, static_cast<int64_t>(e));
    const int64_t rows = offsets[e + 1] - offsets[e];
    if (rows > 0)
      product(grad_out.narrow(0, offsets[e], rows), x.narrow(0, offsets[e], rows), sum, accumulate);
    else if (!accumulate)
      sum.zero_();
  }
}

}  // namespace stepforge::cuda_plugin
