// SPDX-License-Identifier: Apache-2.0
// Lion (Chen et al. 2023, arXiv 2302.06675):
//
//   lr = options.lr * lr_factor
//   g  = grad * grad_scale
//   p -= lr * weight_decay * p
//   p -= lr * sign(beta1 m + (1 - beta1) g)
//   m  = beta2 m + (1 - beta2) g
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"

namespace stepforge {

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
};

/// Updates all elements in one pass. All tensors are flat fp32 (fp64 on the reference path) and equally long, and
/// `scalars` are on their device. Throws Error otherwise.
void lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const LionOptions& options, const UpdateScalars& scalars);

}  // namespace stepforge
