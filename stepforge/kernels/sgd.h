// SPDX-License-Identifier: Apache-2.0
// SGD with momentum as torch.optim.SGD computes it, without dampening:
//
//   g  = grad * grad_scale + weight_decay * p
//   b  = momentum b + g
//   p -= options.lr * lr_factor * (nesterov ? g + momentum b : b)
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"

namespace stepforge {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

/// Updates all elements. All tensors are flat fp32 or fp64 and equally long; `buffer` is undefined without momentum.
/// Throws Error otherwise.
void sgd_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& buffer,
                const SgdOptions& options, const UpdateScalars& scalars);

}  // namespace stepforge
