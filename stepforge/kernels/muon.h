// SPDX-License-Identifier: Apache-2.0
// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; torch.optim.Muon) for one matrix:
//
//   lr = options.lr * lr_factor
//   g  = grad * grad_scale
//   b  = momentum b + (1 - momentum) g
//   u  = orthogonalize(nesterov ? momentum b + (1 - momentum) g : b)
//   p  = p (1 - lr weight_decay) - lr scale u
//
// `scale` is 0.2 sqrt(max(rows, columns)) for an update with the RMS of AdamW (Liu et al. 2025, arXiv 2502.16982), or
// sqrt(max(1, rows / columns)).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"

namespace stepforge {

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.1;
  bool nesterov = true;
  bool as_adamw = true;                    ///< the first of the scales above
  int64_t iterations = 5;                  ///< of Newton-Schulz
  at::ScalarType compute = at::kBFloat16;  ///< of them
};

/// The nearest matrix with orthonormal rows or columns, roughly: `iterations` iterations of Newton-Schulz with the
/// coefficients 3.4445, -4.7750 and 2.0315, in `compute`, from `matrix` [rows, columns] divided by its norm. They bring
/// singular values to about 0.7 to 1.2.
at::Tensor orthogonalize(const at::Tensor& matrix, int64_t iterations, at::ScalarType compute);

/// Updates a matrix. All tensors are fp32 or fp64 [rows, columns], contiguous or all transposed in memory. Throws Error
/// otherwise.
void muon_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const MuonOptions& options, const UpdateScalars& scalars);

}  // namespace stepforge
