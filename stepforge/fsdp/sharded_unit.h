// SPDX-License-Identifier: Apache-2.0
// The unit that fully_shard makes of a module: its parameters that no unit inside it owns. They are sharded,
// gathered, reduced and updated together.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "stepforge/fsdp/fsdp_param_group.h"
#include "stepforge/fsdp/shard_mesh.h"

namespace stepforge {

/// Dtypes of a unit. Masters, local gradients and optimizer state are always fp32.
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype = {};   ///< dtype of gathered parameters; default: each one's own
  std::optional<at::ScalarType> reduce_dtype = {};  ///< dtype in which gradients are sent; default: fp32
  std::optional<at::ScalarType> output_dtype = {};  ///< floating outputs of the module are cast to it
  bool cast_forward_inputs = true;                  ///< whether floating inputs are cast to param_dtype
};

enum class ReduceOp : uint8_t { avg, sum };

/// A unit, registered in its module as a child without parameters. Users call its methods through Sharded
/// (fsdp/fully_shard.h).
class ShardedUnit : public torch::nn::Module {
 public:
  struct Behavior {
    bool reshard_after_forward = true;
    bool reshard_after_backward = true;
    bool requires_gradient_sync = true;
    bool requires_all_reduce = true;
    bool is_last_backward = true;
    ReduceOp reduce_op = ReduceOp::avg;
    double scaling_factor = 1.0;
    std::vector<std::weak_ptr<ShardedUnit>> forward_prefetch;
    std::optional<std::vector<std::weak_ptr<ShardedUnit>>> backward_prefetch;
  };

  ShardedUnit(std::string name, std::shared_ptr<ShardMesh> mesh, MixedPrecision precision);

  const std::string& unit_name() const { return name_; }
  ShardMesh& mesh() const { return *mesh_; }
  const MixedPrecision& precision() const { return precision_; }
  Behavior behavior;

  /// Sets of parameters that are stored in the same way.
  const std::vector<std::unique_ptr<FsdpParamGroup>>& param_groups() const { return param_groups_; }
  void add_param_group(std::unique_ptr<FsdpParamGroup> group) { param_groups_.push_back(std::move(group)); }
  bool owns(const at::Tensor& parameter) const;
  /// The parameters in ignored_params.
  std::vector<NamedParameter> ignored;
  /// Other units whose parameters this module uses too, and these parameters under their names in this
  /// module.
  std::vector<std::shared_ptr<ShardedUnit>> borrowed;
  std::vector<NamedParameter> tied;
  /// Names of parameters and buffers from the meta device that have no values yet.
  std::vector<std::string> without_value;

  /// Starts a gather; with `wait` also waits until the values are bound.
  void unshard(bool wait);
  /// Frees the gathered values unless a running call uses them.
  void reshard();
  bool unsharded() const;
  void start_reduction();
  void finish_reduction();
  /// Waits for a gather under way.
  void wait_for_gather();
  /// Drops all gradients, also those of ignored parameters.
  void drop_gradients();

  // For UnitCall and UnitTrace:
  void begin_forward();
  void end_forward();
  /// end_forward() of a call that failed.
  void abort_forward() { --uses_; }
  /// `next`: the unit that backward needs after this one; may be null.
  void begin_backward(ShardedUnit* next);
  void end_backward();
  /// Whether the end of a backward reduces.
  bool reduces() const { return behavior.requires_gradient_sync; }
  bool is_last_backward() const { return behavior.is_last_backward; }
  /// Frees the gathered values even if a failed call still counts as a use.
  void clear_uses();

 private:
  std::string name_;
  MixedPrecision precision_;
  std::vector<std::unique_ptr<FsdpParamGroup>> param_groups_;
  int uses_ = 0;                     ///< running calls and backwards
  std::shared_ptr<ShardMesh> mesh_;  // last: its groups are destroyed before the buffers of their collectives
};

}  // namespace stepforge
