// SPDX-License-Identifier: Apache-2.0
// Parameters of one unit that are stored in the same way: sharded or replicated, with one gather dtype, trained
// or frozen. A UnitStore behind the tensors of torch::nn modules: their memory comes and goes, and an optimizer
// updates this rank's shard of them.
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
  bool all_reduce = true;  ///< over the replicas; otherwise the sums over shards wait for the next reduction
  double factor = 1.0;     ///< multiplies the sums over all ranks
};

class FsdpParamGroup {
 public:
  /// Shards the values of `parameters`, which have memory on every rank or are on the meta device, and frees the
  /// memory of their tensors: using one before unshard() throws c10::Error, "... not gathered ...", with
  /// `unit_name`. `replicated`: every rank holds the whole, gradients are summed over all ranks.
  /// options.with_gradient: whether any of them is trained.
  FsdpParamGroup(const std::string& unit_name, ShardMesh& mesh, const StoreOptions& options, bool replicated,
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

  /// Starts a gather unless one is under way or the gathered values are still those of the masters.
  void start_gather();
  /// start_gather(), and waits for its end: then the module's tensors have their values.
  void finish_gather();
  /// Waits for a gather under way, so that the masters may change; finish_gather() binds its values.
  void wait_for_gather();
  bool gathered() const { return store_->gathered(); }
  /// The module's tensors lose their memory. Waits for a gather under way.
  void release();

  /// Backward may write: the module's trained tensors have .grad, which continues from what micro-steps
  /// without reduction have left there.
  void start_gradient();
  /// Starts to sum what backwards have written since the last reduction; zero where none has.
  void start_reduction(const ReduceRule& rule);
  /// Waits for the reduction under way, if any; the locals' .grad then holds its result.
  void finish_reduction();
  /// This rank's shard of all gradients, flat like the masters. A .grad that the user has replaced is copied
  /// into it.
  const at::Tensor& gradient();
  /// The masters have been written other than through local(): values gathered before are stale.
  void masters_changed() { ++changes_; }
  /// Drops every gradient, also those not yet reduced. Waits for a reduction under way.
  void zero_grad();

  /// Writes the whole value of parameter `index`; each rank keeps its shard. Values gathered before are stale.
  void set_value(size_t index, const at::Tensor& whole);

 private:
  int64_t masters_version() const;
  void show_values();
  void hide_values();
  /// Whether any local has a gradient, to which a reduction adds; the others' regions are then set to zero.
  bool keep_earlier_gradients();

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
  at::Tensor partial_;  ///< summed over shards, not yet over replicas
};

}  // namespace stepforge
