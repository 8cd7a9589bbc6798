// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/source_losses.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/device_copy.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

SourceLosses::SourceLosses(std::vector<std::string> names, at::Device device) : names_(std::move(names)) {
  if (names_.size() < 2) names_.clear();
  sums_ = at::zeros({2, std::ssize(names_)}, at::TensorOptions().dtype(at::kDouble).device(device));
  losses_ = sums_.select(0, 0);
  labels_ = sums_.select(0, 1);
}

void SourceLosses::add(const Batch& batch, const at::Tensor& token_loss) {
  if (names_.empty() || batch.sources.empty()) return;
  std::vector<double> counted(static_cast<size_t>(batch.rows), 0.0);
  for (size_t i = 0; i < batch.labels.size(); ++i)
    if (batch.labels[i] != kIgnoredLabel) counted[i / static_cast<size_t>(batch.seq_len)] += 1.0;
  std::vector<int64_t> sources;
  // Rows of no source have no labels either.
  for (const int32_t source : batch.sources) sources.push_back(std::max(source, 0));
  const at::Tensor index =
      copy_to_device(at::tensor(sources, at::device(at::kCPU).dtype(at::kLong)), token_loss.device());
  losses_.index_add_(0, index, token_loss.view({batch.rows, batch.seq_len}).to(at::kDouble).sum(1));
  labels_.index_add_(
      0, index,
      copy_to_device(at::tensor(counted, at::device(at::kCPU).dtype(at::kDouble)), token_loss.device()));
}

std::vector<std::pair<std::string, double>> SourceLosses::take(Communicator* ranks) {
  std::vector<std::pair<std::string, double>> means;
  if (names_.empty()) return means;
  at::Tensor sums = sums_.cpu();
  if (ranks != nullptr) ranks->all_reduce(bytes_of(sums), DType::f64);
  const double* const losses = sums.const_data_ptr<double>();
  const double* const labels = losses + names_.size();
  for (size_t i = 0; i < names_.size(); ++i)
    if (labels[i] > 0.0) means.emplace_back(names_[i], losses[i] / labels[i]);
  sums_.zero_();
  return means;
}

}  // namespace stepforge
