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
  /// Changes the correction that `unit` is, unless `flag` is 0; the same on all `ranks`, whose tokens are added (null: there
  /// is one). Ranks that compute the same tokens count alike, which does not matter.
  void update(int unit, Communicator* ranks, const at::Tensor& flag);

 private:
  ModelStore& store_;
  double speed_;
  RouterTally tally_;
};

}  // namespace stepforge
