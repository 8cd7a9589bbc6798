// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/embedding.h"

#include <ATen/ops/index_select.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out) {
  check_tensor(tokens, "embedding tokens", {tokens.size(0)}, at::kInt);
  check_shape(weight, "embedding weight", {weight.size(0), weight.size(1)});
  check_tensor(out, "embedding out", {tokens.size(0), weight.size(1)}, weight.scalar_type());
  if (has_cpu_kernel(weight)) {
    cpu::embedding_forward(tokens, weight, out);
  } else {
    embedding_forward_reference(tokens, weight, out);
  }
}

void embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out, const at::Tensor& grad_weight,
                        bool accumulate) {
  check_tensor(tokens, "embedding tokens", {tokens.size(0)}, at::kInt);
  check_shape(grad_out, "embedding grad_out", {tokens.size(0), grad_out.size(1)});
  check_tensor(grad_weight, "embedding grad_weight", {grad_weight.size(0), grad_out.size(1)},
               compute_type(grad_out));
  if (has_cpu_kernel(grad_out)) {
    cpu::embedding_backward(tokens, grad_out, grad_weight, accumulate);
  } else {
    embedding_backward_reference(tokens, grad_out, grad_weight, accumulate);
  }
}

void embedding_forward_reference(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out) {
  out.copy_(at::index_select(weight, 0, tokens));
}

void embedding_backward_reference(const at::Tensor& tokens, const at::Tensor& grad_out,
                                  const at::Tensor& grad_weight, bool accumulate) {
  if (!accumulate) grad_weight.zero_();
  grad_weight.index_add_(0, tokens, grad_out.to(grad_weight.scalar_type()));
}

}  // namespace stepforge
