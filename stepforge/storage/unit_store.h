// SPDX-License-Identifier: Apache-2.0
// The storage of one unit: flat master weights ("masters", in fp32 unless they are frozen in another dtype), a flat fp32
// gradient, and the gathered values that layers read. On several ranks masters, gradient and optimizer state are divided
// into equal shards (modelspec/flat_layout.h), one per rank; gathered values and the gradient that backward writes are
// whole while they exist. fully_shard and the executor both use it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/collective.h"
#include "stepforge/kernels/compute_device.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/parameter.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/parameter.h"
#include "stepforge/storage/coded_factors.h"
#include "stepforge/storage/group_communicators.h"
#include "stepforge/storage/trained_parts.h"

namespace stepforge {

struct StoreOptions {
  bool with_gradient = true;  ///< allocate gradients of trainable units
  /// If one rank holds the whole unit, values gathered in the dtype of the masters are the masters themselves, and
  /// backward writes into gradient() itself. Otherwise both have their own memory, as on several ranks.
  bool alias_if_whole = true;
  ComputeDevice compute = cpu_device();  ///< on which steps compute
  /// Masters, gradient and optimizer state are in host memory and updated there; gathers read it.
  bool updates_on_host = false;
  bool pinned = false;  ///< what is kept on the host is in page-locked memory, which needs an accelerator
  int unit = kNoUnit;   ///< the unit's number in the model; ranks compare it in collectives
};

class UnitStore {
 public:
  /// Allocates this rank's masters (zero) and, if the unit is trained and options.with_gradient, their
  /// gradient (zero). `spec` must outlive the store, `groups` its last collective; the groups of `layout` are
  /// those of `groups`. Values have no memory until gather() unless the unit is resident; using them before
  /// throws c10::Error ("not allocated"), and so does writing a gradient into a buffer before
  /// start_gradient(). Masters and gradient of an offloaded unit stay in host memory: gathers, reductions and
  /// updates work on copies on the device, set by set_working_master() and set_working_gradient(), and
  /// nothing is aliased.
  UnitStore(const UnitSpec& spec, const UnitLayout& layout = {}, const StoreOptions& options = {},
            const GroupCommunicators& groups = single_rank_groups());
  UnitStore(const UnitStore&) = delete;
  UnitStore& operator=(const UnitStore&) = delete;

  const UnitSpec& spec() const { return spec_; }
  const StoreOptions& options() const { return options_; }
  const UnitLayout& layout() const { return layout_; }
  const ShardLayout& shards() const { return shards_; }
  /// This rank's index in the shard group.
  int shard() const { return shard_; }
  bool sharded() const { return shards_.shards() > 1; }
  /// The device on which steps compute. Masters and gradient of an offloaded unit are in host memory.
  at::Device device() const { return options_.compute.device; }
  /// Of tensors that live as long as the unit: on the device, or on the host if the unit rests there.
  at::TensorOptions resting_options(at::ScalarType type) const;
  bool rests_on_host() const { return layout_.offloaded || options_.updates_on_host; }
  /// This rank's index among those that hold the same shard, and their number.
  int replica() const { return groups_->layout().index_in(layout_.replica_group()); }
  int replicas() const { return groups_->layout().size_of(layout_.replica_group()); }
  /// Whether values are the masters themselves.
  bool resident() const { return layout_.gather == spec_.master && writes_in_place(); }
  bool trained() const { return gradient_.defined(); }
  /// Whether backward writes into gradient() itself.
  bool writes_in_place() const { return !sharded() && options_.alias_if_whole && !rests_on_host(); }

  int64_t shard_size() const { return shards_.shard_size(); }        ///< elements on each rank
  int64_t gathered_size() const { return shards_.gathered().size; }  ///< of a gathered copy
  /// This rank's part of parameters [first, last), with the padding between them.
  ShardRange local_range(size_t first, size_t last) const;
  /// This rank's part of rows [begin, end) of parameter `index`, as slices of the tensor of these rows.
  std::vector<ShardSlice> slices(size_t index, int64_t begin, int64_t end) const;
  /// This rank's part of the whole parameter.
  std::vector<ShardSlice> slices(size_t index) const;

  /// [shard_size()] of spec().master; of codes [spec().stored_bytes(shard_size())], as coded_weights() or, with coded
  /// factors, CodedFactors has them.
  const at::Tensor& master() const { return master_; }
  /// Whether master() holds codes.
  bool coded() const { return spec_.storage().coded(); }
  /// The numbers that master() stands for: itself, or fp32 [shard_size()] in memory of their own.
  at::Tensor master_values() const;
  /// Stores elements [begin, begin + values.numel()) of the shard. values: on the host; fp32 for codes. Throws UsageError
  /// if codes would be made of parts of blocks.
  void store(int64_t begin, const at::Tensor& values);
  /// With coded factors store() leaves them out: the tensor that begins at `row` of parameter `index` gets them here, from those of all
  /// its blocks, also of other ranks.
  void store_factors(size_t index, int64_t row, const TensorFactors& factors);
  const at::Tensor& gradient() const { return gradient_; }  ///< [shard_size()] fp32; undefined if not trained
  /// What gathers, reductions and updates work on: master() and gradient(), or for an offloaded unit the
  /// copies that are set.
  const at::Tensor& working_master() const { return working_master_; }
  const at::Tensor& working_gradient() const { return working_gradient_; }
  /// [shard_size()], typed like what they copy; undefined frees the copy on the device. Only for an offloaded unit.
  void set_working_master(at::Tensor copy) { working_master_ = std::move(copy); }
  void set_working_gradient(at::Tensor copy) { working_gradient_ = std::move(copy); }
  std::vector<Parameter>& parameters() { return parameters_; }
  const Parameter& parameter(size_t index) const { return parameters_.at(index); }
  /// The master values of parameter `index`, with its shape. Only for a unit that is whole on this rank.
  at::Tensor master_view(size_t index) const;
  /// Joins `shard` [shard_size()] of all ranks: [flat_layout(spec()).size] in that layout, whatever the
  /// partition, the same on all ranks. A collective of the compute lane; returns `shard` itself if the unit
  /// is whole on this rank.
  at::Tensor whole(const at::Tensor& shard) const;

  /// Fills `slot` [gathered_size()] with the masters in the gather dtype, and binds every parameter's value
  /// to it. A collective of the gather lane if the unit is sharded.
  void gather(at::Tensor slot);
  /// The first half of gather(), the all-gather. For the thread that uses the gather communicator.
  void fill(const at::Tensor& slot) const;
  /// The second half of gather(). For the thread that uses the values.
  void bind_values(at::Tensor slot);
  /// Frees the values' memory.
  void release();
  bool gathered() const { return resident() || slot_.defined(); }

  /// Allocates the gradient of a unit that was made without one.
  void allow_gradient();
  /// The next write of each gradient overwrites it. Unless writes_in_place(), gradients are written into
  /// `buffer` [gathered_size()] fp32 until end_reduction().
  void start_gradient(at::Tensor buffer = {});
  /// Completes the gradients of all parameters after a backward (Parameter::finish_gradient). Required before they
  /// are taken, added or reduced.
  void finish_gradient();
  /// The flat buffer that backward writes into; undefined if not trained.
  const at::Tensor& written_gradient() const { return writes_in_place() ? gradient_ : whole_gradient_; }
  /// Sums the written gradient over the shard group into working_gradient(), or adds the sum to it. In fp16
  /// it is sent in units of 2^-8, so that gradients from 2.3e-10 to 255 can be represented. A collective of
  /// the reduce lane if the unit is sharded.
  void reduce(bool accumulate);
  /// Sums `written`, laid out like a gathered copy, over the shard group. Returns this rank's shard of the
  /// sum [shard_size()] fp32, zero outside `parts`. A collective of the reduce lane if the unit is sharded.
  /// `written` may be overwritten.
  at::Tensor reduced(const at::Tensor& written, const TrainedParts& parts) const;
  /// Sums `gradient`, the reduced or the written one, over the ranks that hold a copy of the unit for another stage of
  /// a pipeline.
  void add_copies(Communicator& copies, const at::Tensor& gradient) const;
  /// Frees the memory of the written gradient, unless writes_in_place().
  void end_reduction();
  /// Sums working_gradient() over the replicas, in fp16 like reduce(). A collective of the reduce lane.
  void all_reduce();
  /// Sums `parts` of `shard` [shard_size()] fp32 over the replicas, in place; the rest becomes zero. A
  /// collective of the reduce lane.
  void all_reduce(const at::Tensor& shard, const TrainedParts& parts) const;
  /// Ordered mode: the written gradient, laid out like a gathered copy. The caller keeps it, and the next
  /// start_gradient() begins another.
  at::Tensor take_gradient();
  /// Ordered mode: written gradient = `earlier` + written gradient, or just `earlier` if nothing has been written since
  /// start_gradient().
  void add_gradient(const at::Tensor& earlier);

  /// Initial values from (seed, Hugging Face name of the sub-tensor, element index).
  void initialize(uint64_t seed);

 private:
  /// An fp16 gradient is multiplied by it before rounding and divided by it afterwards.
  double reduce_scale() const { return layout_.reduce == DType::f16 ? 256.0 : 1.0; }
  /// The shard group on this lane.
  Communicator& shard_group(Lane lane) const { return *groups_->at(layout_.shard_group, lane); }
  at::Tensor view(const at::Tensor& flat, const FlatLayout& layout, size_t index) const;
  /// Of tensors that a step makes.
  at::TensorOptions working_options(at::ScalarType type) const { return at::device(device()).dtype(type); }
  /// The numbers that `stored`, a master, stands for.
  void copy_values(const at::Tensor& stored, const at::Tensor& to) const;
  void clear_padding(const at::Tensor& gathered) const;
  /// Calls visit(slice of the parameter in `flat`, the same slice in `joined`) for every rank and parameter.
  template <typename Visit>
  void for_each_piece(const at::Tensor& joined, const FlatLayout& layout, const at::Tensor& flat,
                      const Visit& visit) const;

  const UnitSpec& spec_;
  UnitLayout layout_;
  StoreOptions options_;
  const GroupCommunicators* groups_;
  ShardLayout shards_;
  int shard_;
  std::optional<CodedFactors> coded_factors_;
  at::Tensor master_;
  at::Tensor gradient_;
  at::Tensor working_master_;
  at::Tensor working_gradient_;
  at::Tensor values_;  ///< flat, of the gather dtype; the parameters' values are views of its storage
  at::Tensor slot_;
  /// Undefined if writes_in_place(); otherwise the parameters' gradients are views of its storage.
  at::Tensor whole_gradient_;
  at::Tensor gradient_buffer_;
  std::vector<Parameter> parameters_;
};

/// All units of a model on this rank.
class ModelStore {
 public:
  /// `layout` has a unit for each of `units`; its groups are those of `groups`.
  ModelStore(const std::vector<UnitSpec>& units, const RankLayout& layout, const StoreOptions& options = {},
             std::shared_ptr<const GroupCommunicators> groups = std::make_shared<GroupCommunicators>());

  size_t size() const { return units_.size(); }
  UnitStore& unit(size_t index) { return *units_.at(index); }
  const UnitStore& unit(size_t index) const { return *units_.at(index); }
  /// Throws Error if no unit has a parameter of that name.
  Parameter& parameter(std::string_view name);
  ParameterLookup lookup();
  /// `with_frozen`: false leaves frozen units at zero, for those that are loaded afterwards.
  void initialize(uint64_t seed, bool with_frozen = true);
  const GroupCommunicators& groups() const { return *groups_; }
  /// The device on which steps compute, the same for all units.
  at::Device device() const { return compute_.device; }
  /// Of a lane other than compute, on a device other than the CPU. The executors of a store run one after the other and share it.
  c10::Stream lane_stream(Lane lane) const;
  DeviceBackend& backend() const { return *compute_.backend; }

 private:
  ComputeDevice compute_;
  std::vector<std::unique_ptr<UnitStore>> units_;
  std::map<std::string_view, Parameter*> parameters_;  ///< by name
  mutable std::array<std::optional<c10::Stream>, kLanes> lane_streams_;
  std::shared_ptr<const GroupCommunicators> groups_;  // last: destroyed before the buffers of its collectives
};

at::ScalarType scalar_type(DType dtype);

}  // namespace stepforge
