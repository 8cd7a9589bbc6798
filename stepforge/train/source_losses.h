// SPDX-License-Identifier: Apache-2.0
// The mean loss of each data source, over the steps since it was last asked for.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/data/batch.h"

namespace stepforge {

/// Adds up cross-entropies on the compute device; nothing is exchanged before take(). Empty for a single source,
/// whose loss is that of the step.
class SourceLosses {
 public:
  /// `names`: of the sources, as Batch::sources numbers them.
  SourceLosses(std::vector<std::string> names, at::Device device);

  /// token_loss: [rows * seq_len] fp32 or fp64, the cross-entropy of each token, 0 for an ignored label.
  void add(const Batch& batch, const at::Tensor& token_loss);

  /// The mean over the labels of each source that had any, on all ranks, in the order of the names; starts again.
  /// All ranks call it together; `ranks` is null for a single one. Ranks that compute the same rows count alike.
  std::vector<std::pair<std::string, double>> take(Communicator* ranks);

 private:
  std::vector<std::string> names_;
  at::Tensor sums_;    ///< fp64 [2, sources]: losses, labels
  at::Tensor losses_;  ///< [sources], of sums_
  at::Tensor labels_;  ///< [sources], of sums_
};

}  // namespace stepforge
