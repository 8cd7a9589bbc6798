// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/lion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const LionOptions& options, const UpdateScalars& scalars) {
  check_shape(parameter, "lion parameter", {parameter.numel()});
  check_tensor(grad, "lion grad", parameter.sizes(), parameter.scalar_type());
  check_tensor(momentum, "lion momentum", parameter.sizes(), parameter.scalar_type());
  pick(&KernelTable::lion_update, parameter)(parameter, grad, momentum, options, scalars);
}

void reference::lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                            const LionOptions& options, const UpdateScalars& scalars) {
  const at::Tensor lr = scalars.lr_factor * options.lr;
  // Selected, not multiplied: 0 times a value that is not finite is not 0.
  const at::Tensor updates = scalars.finite.ne(0.0);
  for_each_slice(0, parameter.numel(), [&](int64_t from, int64_t to) {
    const at::Tensor p = parameter.slice(0, from, to);
    const at::Tensor m = momentum.slice(0, from, to);
    const at::Tensor g = grad.slice(0, from, to) * scalars.grad_scale;
    const at::Tensor direction = (m * options.beta1 + g * (1.0 - options.beta1)).sign();
    const at::Tensor updated = p * (1.0 - lr * options.weight_decay) - direction * lr;
    const at::Tensor mean = m * options.beta2 + g * (1.0 - options.beta2);
    p.copy_(at::where(updates, updated, p));
    m.copy_(at::where(updates, mean, m));
  });
}

}  // namespace stepforge
