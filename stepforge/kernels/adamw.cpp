// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

UpdateScalars first_update_scalars(at::Device device) {
  const at::Tensor all = at::ones({4}, at::TensorOptions().dtype(at::kDouble).device(device));
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2), all.select(0, 3)};
}

void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWOptions& options,
                  const UpdateScalars& scalars) {
  check_shape(parameter, "adamw parameter", {parameter.numel()});
  check_tensor(grad, "adamw grad", parameter.sizes(), parameter.scalar_type());
  const bool narrow = first_moment.scalar_type() == at::kBFloat16;
  const at::ScalarType moments = narrow ? at::kBFloat16 : parameter.scalar_type();
  check_tensor(first_moment, "adamw first_moment", parameter.sizes(), moments);
  check_tensor(second_moment, "adamw second_moment", parameter.sizes(), moments);
  check_scalar(scalars.finite, "adamw finite");
  check_scalar(scalars.number, "adamw number");
  check_scalar(scalars.lr_factor, "adamw lr_factor");
  check_scalar(scalars.grad_scale, "adamw grad_scale");
  if (begin < 0 || begin > end || end > parameter.numel()) {
    throw Error(
        format("adamw: interval [{}, {}) is outside a buffer of {} elements", begin, end, parameter.numel()));
  }
  pick(&KernelTable::adamw_update, parameter)(parameter, grad, first_moment, second_moment, begin, end,
                                              options, scalars);
}

void reference::adamw_update(const at::Tensor& parameter, const at::Tensor& grad,
                             const at::Tensor& first_moment, const at::Tensor& second_moment, int64_t begin,
                             int64_t end, const AdamWOptions& options, const UpdateScalars& scalars) {
  const at::Tensor lr = scalars.lr_factor * options.lr;
  const at::Tensor correction1 = 1.0 - at::pow(options.beta1, scalars.number);
  const at::Tensor correction2 = 1.0 - at::pow(options.beta2, scalars.number);
  // Selected, not multiplied: 0 times a value that is not finite is not 0.
  const at::Tensor updates = scalars.finite.ne(0.0);
  for_each_slice(begin, end, [&](int64_t from, int64_t to) {
    const at::Tensor p = parameter.slice(0, from, to);
    const at::Tensor m = first_moment.slice(0, from, to);
    const at::Tensor v = second_moment.slice(0, from, to);
    const at::Tensor g = grad.slice(0, from, to) * scalars.grad_scale;
    const at::Tensor old_m = m.to(p.scalar_type());
    const at::Tensor old_v = v.to(p.scalar_type());
    const at::Tensor new_m = old_m * options.beta1 + g * (1.0 - options.beta1);
    const at::Tensor new_v = old_v * options.beta2 + g * g * (1.0 - options.beta2);
    const at::Tensor denominator = new_v.sqrt() / correction2.sqrt() + options.eps;
    const at::Tensor decayed = p * (1.0 - lr * options.weight_decay);
    const at::Tensor new_p = decayed - new_m / denominator * (lr / correction1);
    p.copy_(at::where(updates, new_p, p));
    m.copy_(at::where(updates, new_m, old_m));
    v.copy_(at::where(updates, new_v, old_v));
  });
}

}  // namespace stepforge
