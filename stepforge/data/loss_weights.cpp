// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/loss_weights.h"

#include <algorithm>
#include <cmath>

namespace stepforge {

void weigh_labels(LabelWeights weights, Batch& batch) {
  if (weights == LabelWeights::token) return;
  batch.weights.assign(batch.labels.size(), 0.0F);
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const auto begin = batch.labels.begin() + batch.cu_seqlens[document];
    const auto end = batch.labels.begin() + batch.cu_seqlens[document + 1];
    const auto counted = static_cast<double>(end - begin - std::count(begin, end, kIgnoredLabel));
    const double weight = 1.0 / (weights == LabelWeights::sample ? counted : std::sqrt(counted));
    std::transform(begin, end, batch.weights.begin() + batch.cu_seqlens[document],
                   [&](int32_t label) { return label == kIgnoredLabel ? 0.0F : static_cast<float>(weight); });
  }
  batch.label_weight = sum_of_weights(batch);
}

double sum_of_weights(const Batch& batch) {
  constexpr double kUnit = 1 << 24;
  double sum = 0.0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    double of_row = 0.0;
    for (int64_t i = row * batch.seq_len; i < (row + 1) * batch.seq_len; ++i)
      of_row += static_cast<double>(batch.weights[static_cast<size_t>(i)]);
    sum += std::round(of_row * kUnit) / kUnit;
  }
  return sum;
}

}  // namespace stepforge
