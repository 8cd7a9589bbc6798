// Parameters of one unit that are stored alike: cut or replicated, with one gather dtype, trained or frozen.
// A UnitStore behind the tensors of torch::nn modules: their bytes come and go, and each rank's part of them
// is what an optimizer updates.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/fsdp/lane_worker.h"
#include "stepforge/fsdp/shard_mesh.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// A parameter of a module under its name, relative to the module that the unit is made of.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::vector<std::string> aliases;  ///< other names of the same tensor in the module
};

/// How the gradients of one backward become part of .grad.
struct ReduceRule {
  bool all_reduce = true;  ///< over the replicas; else the sums over shards wait for the next reduction
  double factor = 1.0;     ///< of the sums over all ranks
};

class FsdpParamGroup {
 public:
  /// Cuts the values of `parameters`, which have bytes on every rank or are on the meta device, and takes the
  /// bytes away from their tensors: using one before unshard() throws c10::Error, "... not gathered ...",
  /// with `unit_name`. `replicated`: every rank holds the whole, gradients are summed over all ranks.
  /// options.with_gradient: whether any of them is trained.
  FsdpParamGroup(const std::string& unit_name, ShardMesh& mesh, const StoreOptions& options, bool replicated,
                 std::vector<NamedParameter> parameters);
  ~FsdpParamGroup();
  FsdpParamGroup(const FsdpParamGroup&) = delete;
  FsdpParamGroup& operator=(const FsdpParamGroup&) = delete;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const UnitStore& store() const { return *store_; }
  const ShardMesh& mesh() const { return mesh_; }
  /// This rank's part of parameter `index`: a leaf [held elements] in fp32 that shares the bytes of the
  /// master, shaped like its slice if it is one. Empty where this rank holds nothing of it. Its .grad is set
  /// by reductions.
  const at::Tensor& local(size_t index) const { return locals_.at(index); }
  /// Whether parameter `index` requires grad in the module, which may change at any time.
  bool trained(size_t index) const { return parameters_.at(index).tensor.requires_grad(); }
  bool any_trained() const;

  /// Starts a gather unless one is under way or values are there that the masters still are.
  void start_gather();
  /// start_gather(), and waits for its end: from here on the module's tensors have their values.
  void finish_gather();
  /// Waits for a gather under way, so that the masters may change; its values are bound when they are asked
  /// for.
  void settle_gather();
  bool gathered() const { return store_->gathered(); }
  /// The module's tensors lose their bytes; a gather under way is waited for.
  void release();

  /// Backward may write: the module's trained tensors have .grad, which goes on from what micro-steps without
  /// reduction left there.
  void start_gradient();
  /// Starts to sum what backwards have written since the last reduction; zero where none did.
  void start_reduction(const ReduceRule& rule);
  /// Waits for the reduction under way, if any; the locals' .grad then holds its result.
  void finish_reduction();
  /// This rank's part of all gradients, flat as the masters. A .grad that somebody has replaced is copied
  /// into it.
  const at::Tensor& gradient();
  /// The masters have been written by other means than local(): values gathered before are stale.
  void masters_changed() { ++changes_; }
  /// Drops every gradient, also those not yet reduced. Waits for a reduction under way.
  void zero_grad();

  /// Writes the whole value of parameter `index`: each rank keeps its part. Values gathered before are stale.
  void set_value(size_t index, const at::Tensor& whole);

 private:
  int64_t masters_version() const;
  void show_values();
  void hide_values();
  /// Whether the locals have gradients to which a reduction adds; regions of those that have none are zero
  /// then.
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
  int64_t gathered_version_ = -1;  ///< of the masters that were gathered last

  at::Tensor written_;  ///< flat, what backward writes into
  LaneTask reducing_;
  at::Tensor partial_;  ///< summed over shards, not yet over replicas
};

}  // namespace stepforge
