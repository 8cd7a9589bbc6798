// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw.h"

#include <cmath>

#include <ATen/TensorOperators.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end,
                  const AdamWSettings& settings) {
  check_shape(parameter, "adamw parameter", {parameter.numel()});
  check_tensor(grad, "adamw grad", parameter.sizes(), parameter.scalar_type());
  check_tensor(first_moment, "adamw first_moment", parameter.sizes(), parameter.scalar_type());
  check_tensor(second_moment, "adamw second_moment", parameter.sizes(), parameter.scalar_type());
  if (begin < 0 || begin > end || end > parameter.numel()) {
    throw Error(
        format("adamw: interval [{}, {}) is outside a buffer of {} elements", begin, end, parameter.numel()));
  }
  if (settings.step < 1)
    throw Error(format("adamw: step = {}: must be at least 1, the first update", settings.step));
  if (parameter.is_cpu() && parameter.scalar_type() == at::kFloat) {
    cpu::adamw_update(parameter, grad, first_moment, second_moment, begin, end, settings);
  } else {
    adamw_update_reference(parameter, grad, first_moment, second_moment, begin, end, settings);
  }
}

void adamw_update_reference(const at::Tensor& parameter, const at::Tensor& grad,
                            const at::Tensor& first_moment, const at::Tensor& second_moment, int64_t begin,
                            int64_t end, const AdamWSettings& settings) {
  const AdamWOptions& options = settings.options;
  const auto step = static_cast<double>(settings.step);
  const double correction1 = 1.0 - std::pow(options.beta1, step);
  const double correction2 = 1.0 - std::pow(options.beta2, step);
  at::Tensor p = parameter.slice(0, begin, end);
  at::Tensor m = first_moment.slice(0, begin, end);
  at::Tensor v = second_moment.slice(0, begin, end);
  const at::Tensor g = grad.slice(0, begin, end) * settings.grad_scale;
  p.mul_(1.0 - options.lr * options.weight_decay);
  m.mul_(options.beta1).add_(g, 1.0 - options.beta1);
  v.mul_(options.beta2).addcmul_(g, g, 1.0 - options.beta2);
  const at::Tensor denominator = v.sqrt().div_(std::sqrt(correction2)).add_(options.eps);
  p.addcdiv_(m, denominator, -options.lr / correction1);
}

}  // namespace stepforge
