// SPDX-License-Identifier: Apache-2.0
// The mean losses of the routers, over the steps since they were last asked for.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/nn/router_step.h"

namespace stepforge {

/// Adds up what routers report on the compute device; nothing is exchanged before take().
class RouterLosses {
 public:
  explicit RouterLosses(at::Device device);

  void add(const RouterReport& report);

  struct Means {
    double balance = 0.0;  ///< 1 if the experts of every row have equally many tokens
    double z = 0.0;
  };
  /// The means over layers and counted tokens, on all ranks, if there were any; starts again. All ranks call it
  /// together; `ranks` is null for a single one. Ranks that compute the same rows count alike.
  std::optional<Means> take(Communicator* ranks);

 private:
  at::Tensor sums_;  ///< [3] fp64: balance, z, tokens
};

}  // namespace stepforge
