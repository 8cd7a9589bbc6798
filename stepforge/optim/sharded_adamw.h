// SPDX-License-Identifier: Apache-2.0
// AdamW for modules under fully_shard.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/fsdp/fully_shard.h"
#include "stepforge/fsdp/unit_tree.h"
#include "stepforge/kernels/adamw.h"
#include "stepforge/optim/unit_state.h"

namespace stepforge {

/// AdamW over this rank's shards of all sharded parameters that are trained. The moments are sharded like the
/// parameters. Each parameter's updates are counted from its first gradient on. Neighbouring parameters with
/// equal options and counts are updated in one pass over flat memory. Parameters in ignored_params need
/// another optimizer.
class ShardedAdamW {
 public:
  /// Returns the options of a parameter by its name in the module.
  using OptionsOf = std::function<AdamWOptions(const std::string& name)>;

  /// Throws UsageError for a module without fully_shard.
  ShardedAdamW(const ShardedModule& module, const AdamWOptions& options);
  ShardedAdamW(const ShardedModule& module, const OptionsOf& options);

  /// Updates every parameter that has a .grad, with all learning rates multiplied by `lr_factor`. Waits for
  /// reductions under way.
  void step(double lr_factor = 1.0);

  /// The optimizer's state for the parameters of one group.
  struct GroupState {
    FsdpParamGroup* group = nullptr;
    std::vector<AdamWOptions> options;  ///< of each parameter
    std::vector<UpdateRule> rules;      ///< of these options
    at::Tensor steps;                   ///< int64 [parameters]: updates of each parameter so far
    UnitState moments;                  ///< zero before the first step
  };
  /// The states that have moments: the groups in which any parameter is or was trained. Allocates moments
  /// that do not exist yet. The pointers are valid as long as the optimizer.
  std::vector<const GroupState*> state();
  /// All parameters, in the order of sharded_parameters().
  const std::vector<FsdpParamRef>& parameters() const { return parameters_; }

 private:
  /// Whether any parameter had a gradient.
  bool update(GroupState& state);

  std::vector<FsdpParamRef> parameters_;
  std::vector<GroupState> states_;
  UpdateScalars scalars_;
};

}  // namespace stepforge
