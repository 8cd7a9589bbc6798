// The storage of one unit: flat fp32 masters, a flat fp32 gradient, and the gathered values that layers read.
// Tensors are views at the offsets of spec/flat_layout.h. What fully_shard and the executor share.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/dtype.h"
#include "nn/block.h"
#include "nn/parameter.h"
#include "spec/flat_layout.h"
#include "spec/parameter.h"

namespace stepforge {

class UnitStore {
 public:
  /// Allocates masters (zero) and, if the unit is trained and `with_gradient`, the gradient (zero). `spec`
  /// must outlive it. A unit gathered in fp32 is resident: its values are the masters themselves. Otherwise
  /// its values have no bytes until gather(); using them before throws c10::Error ("not allocated").
  UnitStore(const UnitSpec& spec, DType gather_dtype, bool with_gradient);
  UnitStore(const UnitStore&) = delete;
  UnitStore& operator=(const UnitStore&) = delete;

  const UnitSpec& spec() const { return spec_; }
  const FlatLayout& layout() const { return layout_; }
  bool resident() const { return gather_dtype_ == DType::f32; }
  bool trained() const { return gradient_.defined(); }

  const at::Tensor& master() const { return master_; }  ///< [layout().size] fp32
  const at::Tensor& gradient() const {
    return gradient_;
  }  ///< [layout().size] fp32; undefined if not trained
  std::vector<Parameter>& parameters() { return parameters_; }
  /// The fp32 master values of parameter `index`, with its shape.
  at::Tensor master_view(size_t index) const;

  /// Fills `slot` with the masters in the gather dtype and binds every parameter's value to it. `slot`
  /// [layout().size].
  void gather(at::Tensor slot);
  /// The values lose their bytes.
  void release();
  bool gathered() const { return resident() || slot_.defined(); }

  /// The next writes overwrite.
  void start_gradient();
  /// Parameters that no backward has written since start_gradient() get a zero gradient.
  void finish_gradient();
  /// Ordered mode: keeps the gradient as level `level` of the summation tree.
  void stash_gradient(int level);
  /// Ordered mode: gradient = level + gradient, and the level is freed.
  void add_gradient(int level);

  /// Starting values from (seed, Hugging Face name of the segment, element index).
  void initialize(uint64_t seed);

 private:
  at::Tensor view(const at::Tensor& flat, size_t index) const;

  const UnitSpec& spec_;
  FlatLayout layout_;
  DType gather_dtype_;
  at::Tensor master_;
  at::Tensor gradient_;
  at::Tensor values_;  ///< flat, of the gather dtype; the parameters' values are views of its storage
  at::Tensor slot_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> levels_;
};

/// All units of a model on this rank.
class ModelStore {
 public:
  ModelStore(const std::vector<UnitSpec>& units, DType gather_dtype, bool with_gradients);

  size_t size() const { return units_.size(); }
  UnitStore& unit(size_t index) { return *units_.at(index); }
  const UnitStore& unit(size_t index) const { return *units_.at(index); }
  /// Throws Error if no unit has a parameter of that name.
  Parameter& parameter(std::string_view name);
  ParameterLookup lookup();
  void initialize(uint64_t seed);

 private:
  std::vector<std::unique_ptr<UnitStore>> units_;
};

at::ScalarType scalar_type(DType dtype);

}  // namespace stepforge
