// SPDX-License-Identifier: Apache-2.0
// The language-model head and its loss without chunks: what linear_cross_entropy() computes, from all logits at once.
#pragma once

#include <ATen/ops/mm.h>

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge::testing {

inline void whole_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                       const LossGradient& gradient, const LinearCrossEntropyOutputs& outputs) {
  const at::ScalarType type = compute_type(hidden);
  const at::Tensor logits = at::mm(hidden.to(type), weight.to(type).t());
  if (gradient.cap > 0) reference::cap_logits(logits, gradient.cap);
  reference::cross_entropy(logits, labels, gradient, outputs.token_loss);
  outputs.grad_hidden.copy_(at::mm(logits, weight.to(type)));
  outputs.grad_weight.copy_(at::mm(logits.t(), hidden.to(type)));
}

}  // namespace stepforge::testing
