// The storage of one unit: flat fp32 masters, a flat fp32 gradient, and the gathered values that layers read.
// Tensors are views at the offsets of spec/flat_layout.h. Over several ranks masters, gradient and optimizer
// state are cut into equal intervals (shard_elements), one on each rank; values and the gradient that
// backward writes are whole while they live. What fully_shard and the executor share.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/dtype.h"
#include "nn/block.h"
#include "nn/parameter.h"
#include "parallel/data_groups.h"
#include "spec/flat_layout.h"
#include "spec/parameter.h"

namespace stepforge {

/// Elements [begin, end) of a unit's layout, all on this rank; `local` is where they begin in its shard.
struct HeldRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t local = 0;

  int64_t size() const { return end - begin; }
};

class UnitStore {
 public:
  /// Allocates this rank's masters (zero) and, if the unit is trained and `with_gradient`, their gradient
  /// (zero). `spec` must outlive it. A unit that is whole on this rank and gathered in fp32 is
  /// resident: its values are the masters themselves. Otherwise its values have no bytes until gather();
  /// using them before throws c10::Error ("not allocated"), and so does the gradient of a cut unit before
  /// start_gradient(buffer).
  UnitStore(const UnitSpec& spec, DType gather_dtype, bool with_gradient,
            std::shared_ptr<const DataGroups> groups = std::make_shared<DataGroups>());
  UnitStore(const UnitStore&) = delete;
  UnitStore& operator=(const UnitStore&) = delete;

  const UnitSpec& spec() const { return spec_; }
  const FlatLayout& layout() const { return layout_; }
  bool sharded() const { return groups_->shard().ranks > 1; }
  bool resident() const { return gather_dtype_ == DType::f32 && !sharded(); }
  bool trained() const { return gradient_.defined(); }

  int64_t shard_size() const { return shard_size_; }                           ///< elements on each rank
  int64_t whole_size() const { return shard_size_ * groups_->shard().ranks; }  ///< of a gathered copy
  /// The part of elements [begin, end) of the layout that lies on this rank; perhaps empty.
  HeldRange held(int64_t begin, int64_t end) const;

  const at::Tensor& master() const { return master_; }      ///< [shard_size()] fp32
  const at::Tensor& gradient() const { return gradient_; }  ///< [shard_size()] fp32; undefined if not trained
  std::vector<Parameter>& parameters() { return parameters_; }
  /// The fp32 master values of parameter `index`, with its shape. Only of a unit that is whole on this rank.
  at::Tensor master_view(size_t index) const;
  /// `shard` [shard_size()] of every rank joined: [layout().size], the same on all. A collective of the
  /// compute lane; `shard` itself if the unit is whole on this rank.
  at::Tensor whole(const at::Tensor& shard) const;

  /// Fills `slot` [whole_size()] with the masters in the gather dtype, and binds every parameter's value to
  /// it. A collective of the gather lane if the unit is cut.
  void gather(at::Tensor slot);
  /// The values lose their bytes.
  void release();
  bool gathered() const { return resident() || slot_.defined(); }

  /// The next writes overwrite. A cut unit's go into `buffer` [whole_size()] fp32, until end_reduction().
  void start_gradient(at::Tensor buffer = {});
  /// Parameters that no backward has written since start_gradient() get a zero gradient.
  void finish_gradient();
  /// Sums what backward has written over the shard group into gradient(), or adds that to it. A collective of
  /// the reduce lane.
  void reduce(bool accumulate);
  /// The whole gradient loses its bytes.
  void end_reduction();
  /// Sums gradient() over the replicas. A collective of the reduce lane.
  void all_reduce();
  /// Ordered mode: keeps the gradient as level `level` of the summation tree.
  void stash_gradient(int level);
  /// Ordered mode: gradient = level + gradient, and the level is freed.
  void add_gradient(int level);

  /// Starting values from (seed, Hugging Face name of the segment, element index).
  void initialize(uint64_t seed);

 private:
  at::Tensor view(const at::Tensor& flat, size_t index) const;
  /// What backward writes into.
  const at::Tensor& written_gradient() const { return sharded() ? whole_gradient_ : gradient_; }
  void clear_padding(const at::Tensor& whole) const;

  const UnitSpec& spec_;
  std::shared_ptr<const DataGroups> groups_;
  FlatLayout layout_;
  DType gather_dtype_;
  int64_t shard_size_;
  at::Tensor master_;
  at::Tensor gradient_;
  at::Tensor values_;  ///< flat, of the gather dtype; the parameters' values are views of its storage
  at::Tensor slot_;
  at::Tensor whole_gradient_;  ///< of a cut unit; the parameters' gradients are views of its storage
  at::Tensor gradient_buffer_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> levels_;
};

/// All units of a model on this rank.
class ModelStore {
 public:
  ModelStore(const std::vector<UnitSpec>& units, DType gather_dtype, bool with_gradients,
             std::shared_ptr<const DataGroups> groups = std::make_shared<DataGroups>());

  size_t size() const { return units_.size(); }
  UnitStore& unit(size_t index) { return *units_.at(index); }
  const UnitStore& unit(size_t index) const { return *units_.at(index); }
  /// Throws Error if no unit has a parameter of that name.
  Parameter& parameter(std::string_view name);
  ParameterLookup lookup();
  void initialize(uint64_t seed);
  const DataGroups& groups() const { return *groups_; }

 private:
  std::shared_ptr<const DataGroups> groups_;
  std::vector<std::unique_ptr<UnitStore>> units_;
};

at::ScalarType scalar_type(DType dtype);

}  // namespace stepforge
