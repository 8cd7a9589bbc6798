// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

at::Tensor orthogonalize(const at::Tensor& matrix, int64_t iterations, at::ScalarType compute) {
  constexpr double kA = 3.4445;
  constexpr double kB = -4.7750;
  constexpr double kC = 2.0315;
  constexpr double kEpsilon = 1e-7;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = (tall ? matrix.t() : matrix).to(compute);
  x = x / at::linalg_vector_norm(x).clamp_min(kEpsilon);
  for (int64_t i = 0; i < iterations; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return (tall ? x.t() : x).to(matrix.scalar_type());
}

void muon_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const MuonOptions& options, const UpdateScalars& scalars) {
  if (parameter.dim() != 2) throw Error("muon updates matrices only");
  const auto in_memory = [&](const at::Tensor& matrix) {
    return parameter.is_contiguous() ? matrix : matrix.t();
  };
  const at::Tensor stored = in_memory(parameter);
  check_tensor(in_memory(grad), "muon grad", stored.sizes(), stored.scalar_type());
  check_tensor(in_memory(momentum), "muon momentum", stored.sizes(), stored.scalar_type());
  // Selected, not multiplied: 0 times a value that is not finite is not 0.
  const at::Tensor updates = scalars.finite.ne(0.0);
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  const double scale =
      options.as_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  const at::Tensor g = grad * scalars.grad_scale;
  momentum.copy_(at::where(updates, momentum + (g - momentum) * (1.0 - options.momentum), momentum));
  const at::Tensor direction = options.nesterov ? g + (momentum - g) * options.momentum : momentum;
  const at::Tensor orthogonal = orthogonalize(direction, options.iterations, options.compute);
  const at::Tensor lr = scalars.lr_factor * options.lr;
  const at::Tensor updated = parameter * (1.0 - lr * options.weight_decay) - orthogonal * (lr * scale);
  parameter.copy_(at::where(updates, updated, parameter));
}

}  // namespace stepforge
