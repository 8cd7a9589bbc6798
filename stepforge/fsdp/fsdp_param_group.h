// SPDX-License-Identifier: Apache-2.0
// The parameters of one unit that are stored in the same way: sharded or replicated, with one gather dtype,
// trained or frozen. A UnitStore backs the tensors of torch::nn modules: their memory exists while they are
// gathered, and an optimizer updates this rank's shard.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/fsdp/shard_mesh.h"
#include "stepforge/storage/lane_worker.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// A parameter and its name, relative to the module of the unit.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::vector<std::string> aliases;  ///< other names of the same tensor in the module
};

/// How the gradients of one backward become part of .grad.
struct ReduceRule {
  bool all_reduce = true;  ///< over replicas; otherwise sums over shards are kept for the next reduction
  double factor = 1.0;     ///< by which the sums over all ranks are multiplied
};

class FsdpParamGroup {
 public:
  /// Shards the values of `parameters`, which are on the CPU, the mesh's device or the meta device, moves them to the mesh's device
  /// and frees the memory of their tensors: using one that is not gathered throws c10::Error with the unit's name. `spec` has the
  /// same parameters. options.with_gradient: whether they are trained.
  FsdpParamGroup(UnitSpec spec, ShardMesh& mesh, const UnitLayout& layout, const StoreOptions& options,
                 std::vector<NamedParameter> parameters);
  ~FsdpParamGroup();
  FsdpParamGroup(const FsdpParamGroup&) = delete;
  FsdpParamGroup& operator=(const FsdpParamGroup&) = delete;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const UnitStore& store() const { return *store_; }
  const ShardMesh& mesh() const { return mesh_; }
  /// This rank's shard of parameter `index`: an fp32 leaf that shares memory with the master, shaped like its
  /// slice if it is a single one, else [elements]. Empty if this rank holds nothing of it. Reductions set its
  /// .grad.
  const at::Tensor& local(size_t index) const { return locals_.at(index); }
  /// Whether parameter `index` requires grad in the module, which may change at any time.
  bool trained(size_t index) const { return parameters_.at(index).tensor.requires_grad(); }
  bool any_trained() const;

  /// Starts a gather unless one is under way or the gathered values are up to date.
  void start_gather();
  /// Gathers and waits: then the module's tensors have their values.
  void finish_gather();
  /// Waits for a gather under way, so that the masters may change; finish_gather() binds its values.
  void wait_for_gather();
  bool gathered() const { return store_->gathered(); }
  /// Frees the memory of the module's tensors. Waits for a gather under way.
  void release();

  /// Prepares for backward: the module's trained tensors get a .grad, with the sum of earlier micro-steps
  /// that were not reduced.
  void start_gradient();
  /// Starts to sum the gradients written since the last reduction; unwritten ones are zero.
  void start_reduction(const ReduceRule& rule);
  /// Waits for the reduction under way, if any; the locals' .grad then holds its result.
  void finish_reduction();
  /// This rank's shard of all gradients, laid out like the masters. Copies in a .grad that the user has
  /// replaced.
  const at::Tensor& gradient();
  /// Marks gathered values as stale after the masters were written other than through local().
  void masters_changed() { ++changes_; }
  /// Drops every gradient, also those not yet reduced. Waits for a reduction under way.
  void zero_grad();

  /// Sets parameter `index` to `value`, of its shape; each rank keeps its shard. Marks gathered values as
  /// stale.
  void set_value(size_t index, const at::Tensor& value);

 private:
  int64_t masters_version() const;
  void show_values();
  void hide_values();
  /// Whether any local has a gradient, to which a reduction adds; then the gradients of the others are
  /// zeroed.
  bool keep_earlier_gradients();
  /// What follows uses what `task` has written: of an offloaded unit the host.
  void wait(LaneTask& task) const;
  /// Writes `sum` to the gradient of the shard, or adds it; of an offloaded unit finish_reduction() adds it.
  void take_sum(const at::Tensor& sum, bool accumulate);

  UnitSpec spec_;
  ShardMesh& mesh_;
  int64_t changes_ = 0;
  std::vector<NamedParameter> parameters_;
  std::unique_ptr<UnitStore> store_;
  std::vector<at::Tensor> locals_;
  at::Tensor hidden_;  ///< a tensor whose storage throws "not gathered" when it is used

  LaneTask gathering_;
  at::Tensor filling_;             ///< the slot of the gather under way
  int64_t gathered_version_ = -1;  ///< masters_version() of the last gather

  at::Tensor written_;  ///< the flat buffer that backward writes into
  LaneTask reducing_;
  at::Tensor partial_;   ///< gradients summed over shards, but not yet over replicas
  at::Tensor arriving_;  ///< on the host, of an offloaded unit: a sum on its way, to be added to the gradient
};

}  // namespace stepforge
