// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled weight decay (Loshchilov and Hutter 2019) as torch.optim.AdamW computes it:
//
//   g  = grad * grad_scale
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// The hyper-parameters of a group of parameters, with the defaults of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;

  bool operator==(const AdamWOptions&) const = default;
};

/// The arguments of one update.
struct AdamWSettings {
  AdamWOptions options;
  int64_t step = 1;         ///< t above: 1 at the first update
  double grad_scale = 1.0;  ///< the clipping coefficient
};

/// Updates elements [begin, end) in one pass. All four tensors are flat fp32 buffers (fp64 on the reference
/// path) of the same length. Throws Error if the interval is outside the buffers or step < 1.
void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWSettings& settings);

/// The same by separate ATen operations, without the checks.
void adamw_update_reference(const at::Tensor& parameter, const at::Tensor& grad,
                            const at::Tensor& first_moment, const at::Tensor& second_moment, int64_t begin,
                            int64_t end, const AdamWSettings& settings);

}  // namespace stepforge
