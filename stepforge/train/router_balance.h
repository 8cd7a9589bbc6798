// SPDX-License-Identifier: Apache-2.0
// Balance of experts without a loss: the tokens of each expert in a step, and the change of the routers' corrections.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/train/router_tally.h"

namespace stepforge {

class RouterBalance {
 public:
  /// `speed`: by how much a step changes a correction (kernels/router_correction.h).
  RouterBalance(ModelStore& store, double speed) : store_(store), speed_(speed) {}

  bool changes() const { return speed_ > 0.0; }
  /// Starts a step.
  void begin() { tally_.clear(); }
  void add(const RouterReport& report) { tally_.add(report); }
  /// Updates `unit`, the correction of a router, from token counts summed over `ranks` (null: one rank), the same on all
  /// ranks; changes nothing if `flag` is 0. Ranks that compute the same tokens add equal counts, which changes no comparison.
  void update(int unit, Communicator* ranks, const at::Tensor& flag);

 private:
  ModelStore& store_;
  double speed_;
  RouterTally tally_;
};

}  // namespace stepforge
