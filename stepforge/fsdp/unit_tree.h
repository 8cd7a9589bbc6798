// SPDX-License-Identifier: Apache-2.0
// The units of a module and of the modules inside it, and their parameters by name: for state dicts,
// optimizers and clipping.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "stepforge/fsdp/sharded_unit.h"

namespace stepforge {

/// The unit that fully_shard has made of this module; null if none.
std::shared_ptr<ShardedUnit> unit_of(const torch::nn::Module& module);

struct UnitEntry {
  std::string prefix;  ///< "" or "layers.0."
  std::shared_ptr<ShardedUnit> unit;
};

/// The unit of `root` and of every module inside it, in the order of named_modules().
std::vector<UnitEntry> units_in(const torch::nn::Module& root);

/// One parameter of a unit.
struct FsdpParamRef {
  std::string name;                  ///< relative to the root: "layers.0.attention.weight"
  std::vector<std::string> aliases;  ///< other names of the same tensor
  FsdpParamGroup* group = nullptr;
  size_t index = 0;  ///< in the group

  const at::Tensor& local() const { return group->local(index); }
};

/// Every parameter of every unit in `root`, unit by unit.
std::vector<FsdpParamRef> sharded_parameters(const torch::nn::Module& root);

/// The device on which they are trained; the CPU if there are no parameters.
at::Device device_of(const std::vector<FsdpParamRef>& parameters);

/// Parameters in `root` that belong to no unit, under their names.
std::vector<std::pair<std::string, at::Tensor>> unsharded_parameters(const torch::nn::Module& root);

}  // namespace stepforge
