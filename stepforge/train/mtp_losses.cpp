// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/mtp_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "stepforge/metrics/names.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/train/step_scalars.h"

namespace stepforge {

MtpLosses::MtpLosses(int64_t depths, at::Device device)
    : sums_(at::zeros({depths, 2}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

void MtpLosses::add(int ahead, const BatchTensors& batch, const at::Tensor& token_loss) {
  const at::Tensor sums = sums_.select(0, ahead - 1);
  const at::Tensor own = at::empty_like(sums.select(0, 0));
  sum_losses(batch, token_loss, own);
  sums.select(0, 0).add_(own);
  sums.select(0, 1).add_(batch.host.loss_weight());
}

void MtpLosses::log(Communicator* ranks, MetricsRecord& record) {
  const at::Tensor sums = sums_.cpu();
  if (ranks != nullptr) ranks->all_reduce(bytes_of(sums), DType::f64);
  const auto* values = sums.const_data_ptr<double>();
  for (int64_t i = 0; i < sums.size(0); ++i)
    if (values[2 * i + 1] > 0.0) record.add(metric::mtp_loss(i + 1), values[2 * i] / values[2 * i + 1]);
  sums_.zero_();
}

}  // namespace stepforge
