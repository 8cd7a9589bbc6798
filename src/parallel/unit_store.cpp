#include "parallel/unit_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/format.h"
#include "base/random.h"
#include "kernels/random_fill.h"

namespace stepforge {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::i64:
      return at::kLong;
    case DType::i32:
      return at::kInt;
    case DType::i16:
      return at::kShort;
    case DType::i8:
      return at::kChar;
    case DType::u8:
      return at::kByte;
    case DType::boolean:
      return at::kBool;
  }
  throw Error("unknown dtype");
}

UnitStore::UnitStore(const UnitSpec& spec, DType gather_dtype, bool with_gradient)
    : spec_(spec), layout_(flat_layout(spec)), gather_dtype_(gather_dtype) {
  master_ = at::zeros({layout_.size}, at::kFloat);
  const bool train = with_gradient && spec.trainable;
  if (train) gradient_ = at::zeros({layout_.size}, at::kFloat);
  if (resident()) {
    values_ = master_;
  } else {
    values_ = at::empty({layout_.size}, scalar_type(gather_dtype_));
    release();
  }
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    // variable_data gives each leaf its own version counter, so refilling the bytes does not trip
    // saved-tensor checks.
    at::Tensor value = view(values_, i).variable_data();
    value.set_requires_grad(train);
    parameters_.emplace_back(&spec.parameters[i], std::move(value),
                             train ? view(gradient_, i) : at::Tensor());
  }
}

at::Tensor UnitStore::view(const at::Tensor& flat, size_t index) const {
  const ParameterSpec& parameter = spec_.parameters.at(index);
  return flat.narrow(0, layout_.offsets.at(index), parameter.elements()).view(parameter.shape);
}

at::Tensor UnitStore::master_view(size_t index) const {
  return view(master_, index);
}

void UnitStore::gather(at::Tensor slot) {
  slot_ = std::move(slot);
  slot_.copy_(master_);
  // The bytes stay owned by slot_; the values only point at them.
  values_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(slot_.data_ptr(), c10::Device(c10::DeviceType::CPU)));
}

void UnitStore::release() {
  values_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  slot_ = at::Tensor();
}

void UnitStore::start_gradient() {
  for (auto& parameter : parameters_) parameter.start_gradient();
}

void UnitStore::finish_gradient() {
  for (auto& parameter : parameters_) {
    if (!parameter.written()) {
      parameter.gradient().zero_();
      parameter.mark_written();
    }
  }
}

void UnitStore::stash_gradient(int level) {
  finish_gradient();
  if (levels_.size() <= static_cast<size_t>(level)) levels_.resize(static_cast<size_t>(level) + 1);
  levels_.at(static_cast<size_t>(level)) = gradient_.clone();
}

void UnitStore::add_gradient(int level) {
  finish_gradient();
  at::Tensor earlier = std::move(levels_.at(static_cast<size_t>(level)));
  at::add_out(gradient_, earlier, gradient_);
}

void UnitStore::initialize(uint64_t seed) {
  for (size_t i = 0; i < spec_.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec_.parameters[i];
    float* data = master_view(i).data_ptr<float>();
    for (const Segment& segment : parameter.segments) {
      const int64_t count = segment.rows * parameter.row_elements();
      fill_initial(data, 0, count, segment.init, stream_key(seed, "init:" + segment.hf_name));
      data += count;
    }
  }
}

ModelStore::ModelStore(const std::vector<UnitSpec>& units, DType gather_dtype, bool with_gradients) {
  for (const auto& unit : units)
    units_.push_back(std::make_unique<UnitStore>(unit, gather_dtype, with_gradients));
}

Parameter& ModelStore::parameter(std::string_view name) {
  for (auto& unit : units_) {
    for (auto& parameter : unit->parameters()) {
      if (parameter.spec().name == name) return parameter;
    }
  }
  throw Error(format("the model has no parameter \"{}\"", name));
}

ParameterLookup ModelStore::lookup() {
  return [this](std::string_view name) -> Parameter& { return parameter(name); };
}

void ModelStore::initialize(uint64_t seed) {
  for (auto& unit : units_) unit->initialize(seed);
}

}  // namespace stepforge
