// SPDX-License-Identifier: Apache-2.0
// What a loss other than the cross-entropy computes (LossKind of catalog/loss_kinds.h).
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Some tokens: logits of the whole vocabulary, and what a loss writes. Tokens without a label have label 0, and what is
/// written for them is dropped.
struct LossChunk {
  const at::Tensor& logits;      ///< [n, V] fp32 or bf16, capped if the model caps them
  const at::Tensor& labels;      ///< int64 [n]
  const at::Tensor& token_loss;  ///< fp32 [n]: written
  const at::Tensor& gradient;    ///< fp32 [n, V]: written, d token_loss[n] / d logits[n, v]
};

using LossFunction = std::function<void(const LossChunk& chunk)>;

}  // namespace stepforge
