// SPDX-License-Identifier: Apache-2.0
// What the routers of a model report, added up by layer on the compute device.
#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>

#include "stepforge/nn/router_step.h"

namespace stepforge {

/// A token counts once in a step, in the first forward of a layer, however often that is run again. Nothing is exchanged with
/// other ranks.
class RouterTally {
 public:
  /// Numbers of a layer with E experts: tokens of each expert [E], probabilities of each expert [E], weight of all tokens,
  /// z-loss and balance loss; the last two without their weights in the gradients (kernels/router.h).
  static constexpr int64_t columns(int64_t experts) { return 2 * experts + 3; }

  void add(const RouterReport& report);
  void clear() { sums_.clear(); }
  /// [columns(experts)] fp64, exact up to 2^53; 0 for a layer that has not reported.
  at::Tensor& sums_of(int64_t layer, int64_t experts, at::Device device);

 private:
  std::map<int64_t, at::Tensor> sums_;  ///< by layer
};

}  // namespace stepforge
