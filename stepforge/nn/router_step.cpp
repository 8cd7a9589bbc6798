// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/router_step.h"

#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>

namespace stepforge {

RouterStep::RouterStep(at::Tensor scale, const BatchTensors& batch,
                       std::function<void(const RouterReport&)> on_report, const TensorParallel& tensor)
    : scale_(std::move(scale)), on_report_(std::move(on_report)) {
  const int64_t tokens = batch.token_count();
  const ShardRange own = tensor.sequence ? tensor.part_of(tokens) : ShardRange{0, tokens};
  // Slices begin at multiples of their length, so no such part is of two rows.
  rows_ = own.size() / std::gcd(own.size(), batch.host.seq_len);
  const at::Tensor labels = batch.labels.slice(0, own.begin, own.end);
  token_weights_ = batch.weights.defined() ? batch.weights.slice(0, own.begin, own.end)
                                           : labels.ne(kIgnoredLabel).to(at::kFloat);
}

}  // namespace stepforge
