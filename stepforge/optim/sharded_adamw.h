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
#include "stepforge/optim/adamw.h"

namespace stepforge {

/// AdamW over this rank's shards of all trained parameters of units: moments are as large as the shards. Each
/// parameter's updates are counted from its first gradient on. Neighbours with the same options and counts are
/// updated in one pass over flat memory. Parameters that units ignore need another optimizer.
class ShardedAdamW {
 public:
  /// The options of one parameter by its name in the module.
  using Choose = std::function<AdamWOptions(const std::string& name)>;

  /// Throws UsageError for a module without fully_shard.
  ShardedAdamW(const ShardedModule& module, const AdamWOptions& options);
  ShardedAdamW(const ShardedModule& module, const Choose& options);

  /// Updates every parameter that has a .grad; the rates are multiplied by `lr_factor`. Waits for reductions
  /// under way.
  void step(double lr_factor = 1.0);

  /// Parameters that are stored together, with the optimizer's own state of them.
  struct Part {
    FsdpParamGroup* parameters = nullptr;
    std::vector<AdamWOptions> options;  ///< of each parameter
    at::Tensor steps;                   ///< updates made of each parameter, int64
    UnitAdamW moments;                  ///< zero before the first step
  };
  /// The parts that have moments, in the optimizer's own memory: those of which anything is or was trained.
  std::vector<const Part*> state();
  /// In the order of sharded_parameters().
  const std::vector<FsdpParamRef>& parameters() const { return parameters_; }

 private:
  /// Whether any parameter had a gradient.
  static bool update(Part& part, double lr_factor);

  std::vector<FsdpParamRef> parameters_;
  std::vector<Part> parts_;
};

}  // namespace stepforge
