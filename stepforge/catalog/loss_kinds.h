// SPDX-License-Identifier: Apache-2.0
// The losses: the cross-entropy of the program, and those of plug-ins.
#pragma once

#include <cstdint>
#include <string_view>

#include "stepforge/base/registry.h"
#include "stepforge/config/config.h"

namespace stepforge {

struct LossChunk;  // kernels/loss_chunk.h, which needs libtorch

/// A value of training.loss; registered by plug-ins. The loss of a step is the sum over its tokens, each with its weight,
/// divided by the weight of all, as with the cross-entropy. Validation reports the cross-entropy, whatever the loss.
struct LossKind {
  static constexpr std::string_view kKind = "loss";
  std::string_view name;
  /// Writes the losses of some tokens and their gradients; `extensions` is for the section of a plug-in. Null: the
  /// cross-entropy, which is fused with the head.
  void (*compute)(const LossChunk& chunk, const Extensions& extensions) = nullptr;
  /// fp32 values that compute() allocates at once for each logit, for the memory account.
  int64_t workspace_per_logit = 0;
};

/// The kind that training.loss names. Throws UsageError if neither the program nor a plug-in has it.
LossKind find_loss(const Config& config);

}  // namespace stepforge
