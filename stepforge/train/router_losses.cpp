// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/router_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

RouterLosses::RouterLosses(at::Device device)
    : sums_(at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

void RouterLosses::add(const RouterReport& report) {
  sums_.narrow(0, 0, 2).add_(report.losses);
  const int64_t weights = report.row_sums.size(1) - 2;  // the column of the tokens' weights
  sums_.select(0, 2).add_(report.row_sums.select(1, weights).sum());
}

std::optional<RouterLosses::Means> RouterLosses::take(Communicator* ranks) {
  at::Tensor sums = sums_.cpu().clone();
  if (ranks != nullptr) ranks->all_reduce(bytes_of(sums), DType::f64);
  sums_.zero_();
  const double* const values = sums.const_data_ptr<double>();
  if (values[2] == 0.0) return std::nullopt;
  return Means{values[0] / values[2], values[1] / values[2]};
}

}  // namespace stepforge
