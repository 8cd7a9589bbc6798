// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled weight decay (Loshchilov and Hutter 2019) as torch.optim.AdamW computes it:
//
//   lr = options.lr * lr_factor
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

/// The numbers of an update that a step computes (kernels/scalars.h). They are read when the kernel runs.
struct UpdateScalars {
  at::Tensor finite;      ///< 0: the update changes nothing
  at::Tensor number;      ///< t above: 1 in the first update
  at::Tensor lr_factor;   ///< of the learning rate
  at::Tensor grad_scale;  ///< the clipping coefficient
};

/// The scalars of a first update without clipping: four views of a new tensor of ones.
UpdateScalars first_update_scalars(at::Device device);

/// Updates elements [begin, end) in one pass. All four tensors are flat fp32 buffers (fp64 on the reference
/// path) of the same length, and `scalars` are on their device. The moments may be bf16: they are rounded to the nearest,
/// ties to even, after an update in fp32. (With beta2 above about 0.996 such a second moment no longer falls.) Throws Error if the interval is outside the
/// buffers, and on the CPU if scalars.number < 1.
void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWOptions& options,
                  const UpdateScalars& scalars);

}  // namespace stepforge
