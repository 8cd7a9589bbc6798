// SPDX-License-Identifier: Apache-2.0
// What the head of a model exchanges with a training step that learns from a teacher.
#pragma once

#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/soft_targets.h"

namespace stepforge {

/// One micro-batch of a training step.
class DistillationStep {
 public:
  /// `read`: the targets of the tokens of the micro-batch, with memory for their divergence, on the compute device. Only a rank with a head
  /// asks for them. `on_divergence` is called with the latter once, when it is known.
  DistillationStep(std::function<SoftTargets()> read, std::function<void(const at::Tensor&)> on_divergence)
      : read_(std::move(read)), on_divergence_(std::move(on_divergence)) {}

  SoftTargets targets() const { return read_(); }
  void report(const SoftTargets& targets) const { on_divergence_(targets.divergence); }

 private:
  std::function<SoftTargets()> read_;
  std::function<void(const at::Tensor&)> on_divergence_;
};

}  // namespace stepforge
