// SPDX-License-Identifier: Apache-2.0
// Balance of experts without a loss: the tokens of each expert in a step, and the change of the routers' corrections.
#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/nn/router_step.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Counts on the compute device. A token counts once in a step, in the first forward of a layer, however often that is
/// run again.
class RouterBalance {
 public:
  /// `speed`: by how much a step changes a correction (kernels/router_correction.h).
  RouterBalance(ModelStore& store, double speed) : store_(store), speed_(speed) {}

  bool changes() const { return speed_ > 0.0; }
  /// Starts a step.
  void begin() { tokens_.clear(); }
  void add(const RouterReport& report);
  /// Changes the correction that `unit` is, unless `flag` is 0; the same on all `ranks`, whose tokens are added (null: there
  /// is one). Ranks that compute the same rows count alike, which does not matter.
  void update(int unit, Communicator* ranks, const at::Tensor& flag);

 private:
  ModelStore& store_;
  double speed_;
  std::map<int64_t, at::Tensor> tokens_;  ///< of each layer, [E] fp64: exact up to 2^53
};

}  // namespace stepforge
