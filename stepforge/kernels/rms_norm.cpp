// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_operands(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd) {
  check_shape(x, "rms_norm x", {x.size(0), x.size(1)});
  check_shape(weight, "rms_norm weight", {x.size(1)});
  check_tensor(rstd, "rms_norm rstd", {x.size(0)}, compute_type(x));
}

}  // namespace

at::Tensor norm_scale(const at::Tensor& weight, double offset, at::ScalarType type) {
  const at::Tensor wide = weight.to(type);
  if (offset == 0.0) return wide;
  if (!wide.is_cpu() || type != at::kFloat) return wide + offset;
  // Without the small tensors that libtorch makes of numbers: costs are exact.
  const at::Tensor sum = at::empty_like(wide);
  const auto* from = wide.const_data_ptr<float>();
  auto* to = sum.mutable_data_ptr<float>();
  for (int64_t i = 0; i < wide.numel(); ++i) to[i] = from[i] + static_cast<float>(offset);
  return sum;
}

void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out,
                      const at::Tensor& rstd, double offset) {
  check_operands(x, weight, rstd);
  check_tensor(out, "rms_norm out", x.sizes(), x.scalar_type());
  pick(&KernelTable::rms_norm_forward, x)(x, weight, eps, out, rstd, offset);
}

void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& residual_grad, const at::Tensor& grad_x,
                       const at::Tensor& grad_weight, double offset) {
  check_operands(x, weight, rstd);
  check_tensor(grad_out, "rms_norm grad_out", x.sizes(), x.scalar_type());
  if (residual_grad.defined())
    check_tensor(residual_grad, "rms_norm residual_grad", x.sizes(), x.scalar_type());
  check_tensor(grad_x, "rms_norm grad_x", x.sizes(), x.scalar_type());
  check_tensor(grad_weight, "rms_norm grad_weight", weight.sizes(), compute_type(x));
  pick(&KernelTable::rms_norm_backward, x)(grad_out, x, weight, rstd, residual_grad, grad_x, grad_weight,
                                           offset);
}

void reference::rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps,
                                 const at::Tensor& out, const at::Tensor& rstd, double offset) {
  const at::Tensor wide = x.to(compute_type(x));
  rstd.copy_(wide.square().mean(-1).add(eps).rsqrt());
  out.copy_(wide * rstd.unsqueeze(-1) * norm_scale(weight, offset, wide.scalar_type()));
}

void reference::rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& rstd, const at::Tensor& residual_grad,
                                  const at::Tensor& grad_x, const at::Tensor& grad_weight, double offset) {
  const at::ScalarType type = compute_type(x);
  const at::Tensor grad = grad_out.to(type);
  const at::Tensor normed = x.to(type) * rstd.unsqueeze(-1);
  const at::Tensor weighted = grad * norm_scale(weight, offset, type);
  at::Tensor result =
      rstd.unsqueeze(-1) * (weighted - normed * (weighted * normed).mean(-1, /*keepdim=*/true));
  if (residual_grad.defined()) result = result + residual_grad.to(type);
  grad_weight.copy_((grad * normed).sum(0));
  grad_x.copy_(result);
}

}  // namespace stepforge
