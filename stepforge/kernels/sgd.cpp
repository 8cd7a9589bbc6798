// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/sgd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

// Of plain tensor operations: an optimizer for small studies does not need a kernel of its own.
void sgd_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& buffer,
                const SgdOptions& options, const UpdateScalars& scalars) {
  check_shape(parameter, "sgd parameter", {parameter.numel()});
  check_tensor(grad, "sgd grad", parameter.sizes(), parameter.scalar_type());
  // Selected, not multiplied: 0 times a value that is not finite is not 0.
  const at::Tensor updates = scalars.finite.ne(0.0);
  at::Tensor g = grad * scalars.grad_scale + parameter * options.weight_decay;
  if (options.momentum > 0) {
    check_tensor(buffer, "sgd buffer", parameter.sizes(), parameter.scalar_type());
    const at::Tensor sum = buffer * options.momentum + g;
    buffer.copy_(at::where(updates, sum, buffer));
    g = options.nesterov ? g + sum * options.momentum : sum;
  }
  const at::Tensor updated = parameter - g * (scalars.lr_factor * options.lr);
  parameter.copy_(at::where(updates, updated, parameter));
}

}  // namespace stepforge
