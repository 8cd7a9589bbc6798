// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/lion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const LionOptions& options, const UpdateScalars& scalars) {
  check_shape(parameter, "lion parameter", {parameter.numel()});
  check_tensor(grad, "lion grad", parameter.sizes(), parameter.scalar_type());
  check_tensor(momentum, "lion momentum", parameter.sizes(), parameter.scalar_type());
  if (parameter.is_cpu() && parameter.scalar_type() == at::kFloat)
    cpu::lion_update(parameter, grad, momentum, options, scalars);
  else
    lion_update_reference(parameter, grad, momentum, options, scalars);
}

void lion_update_reference(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                           const LionOptions& options, const UpdateScalars& scalars) {
  const at::Tensor lr = scalars.lr_factor * options.lr;
  const at::Tensor g = grad * scalars.grad_scale;
  const at::Tensor direction = (momentum * options.beta1 + g * (1.0 - options.beta1)).sign();
  const at::Tensor updated = parameter * (1.0 - lr * options.weight_decay) - direction * lr;
  const at::Tensor mean = momentum * options.beta2 + g * (1.0 - options.beta2);
  // Selected, not multiplied: 0 times a value that is not finite is not 0.
  const at::Tensor updates = scalars.finite.ne(0.0);
  parameter.copy_(at::where(updates, updated, parameter));
  momentum.copy_(at::where(updates, mean, momentum));
}

}  // namespace stepforge
