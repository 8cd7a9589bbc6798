#include "parallel/unit_store.h"

#include <algorithm>
#include <span>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
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

namespace {

/// The tensor's storage gets `bytes`, owned by somebody else, or none. Views of it follow.
void bind(const at::Tensor& tensor, void* bytes) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(bytes, c10::Device(c10::DeviceType::CPU)));
}

/// A flat tensor whose storage has no bytes yet.
at::Tensor unbound(int64_t size, at::ScalarType type) {
  at::Tensor tensor = at::empty({size}, type);
  bind(tensor, nullptr);
  return tensor;
}

std::span<std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()};
}

}  // namespace

UnitStore::UnitStore(const UnitSpec& spec, DType gather_dtype, bool with_gradient,
                     std::shared_ptr<const DataGroups> groups)
    : spec_(spec),
      groups_(std::move(groups)),
      layout_(flat_layout(spec)),
      gather_dtype_(gather_dtype),
      shard_size_(shard_elements(layout_.size, groups_->shard().ranks)) {
  master_ = at::zeros({shard_size_}, at::kFloat);
  const bool train = with_gradient && spec.trainable;
  if (train) gradient_ = at::zeros({shard_size_}, at::kFloat);
  if (train && sharded()) whole_gradient_ = unbound(whole_size(), at::kFloat);
  values_ = resident() ? master_ : unbound(whole_size(), scalar_type(gather_dtype_));
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    // variable_data gives each leaf its own version counter, so refilling the bytes does not trip
    // saved-tensor checks.
    at::Tensor value = view(values_, i).variable_data();
    value.set_requires_grad(train);
    parameters_.emplace_back(&spec.parameters[i], std::move(value),
                             train ? view(written_gradient(), i) : at::Tensor());
  }
}

at::Tensor UnitStore::view(const at::Tensor& flat, size_t index) const {
  const ParameterSpec& parameter = spec_.parameters.at(index);
  return flat.narrow(0, layout_.offsets.at(index), parameter.elements()).view(parameter.shape);
}

at::Tensor UnitStore::master_view(size_t index) const {
  return view(master_, index);
}

HeldRange UnitStore::held(int64_t begin, int64_t end) const {
  const int64_t first = shard_size_ * groups_->shard().rank;
  const int64_t from = std::max(begin, first);
  const int64_t to = std::min(end, first + shard_size_);
  return from < to ? HeldRange{from, to, from - first} : HeldRange{begin, begin, 0};
}

at::Tensor UnitStore::whole(const at::Tensor& shard) const {
  if (!sharded()) return shard;
  const at::Tensor joined = at::empty({whole_size()}, shard.scalar_type());
  groups_->across_shards()->all_gather(bytes_of(shard), bytes_of(joined));
  return joined.narrow(0, 0, layout_.size);
}

void UnitStore::gather(at::Tensor slot) {
  slot_ = std::move(slot);
  const at::Tensor part = slot_.narrow(0, shard_size_ * groups_->shard().rank, shard_size_);
  part.copy_(master_);
  if (sharded()) groups_->gather()->all_gather(bytes_of(part), bytes_of(slot_));
  bind(values_, slot_.data_ptr());  // the bytes stay owned by slot_
}

void UnitStore::release() {
  bind(values_, nullptr);
  slot_ = at::Tensor();
}

void UnitStore::start_gradient(at::Tensor buffer) {
  for (auto& parameter : parameters_) parameter.start_gradient();
  if (!sharded()) return;
  gradient_buffer_ = std::move(buffer);
  clear_padding(gradient_buffer_);
  bind(whole_gradient_, gradient_buffer_.data_ptr());
}

void UnitStore::clear_padding(const at::Tensor& whole) const {
  auto* values = whole.data_ptr<float>();
  for (size_t i = 0; i < layout_.offsets.size(); ++i) {
    const int64_t end = layout_.offsets[i] + spec_.parameters[i].elements();
    const int64_t next = i + 1 < layout_.offsets.size() ? layout_.offsets[i + 1] : whole.numel();
    std::fill(values + end, values + next, 0.0F);
  }
}

void UnitStore::reduce(bool accumulate) {
  finish_gradient();
  const at::Tensor sum = accumulate ? at::empty_like(gradient_) : gradient_;
  groups_->reduce()->reduce_scatter(bytes_of(whole_gradient_), bytes_of(sum), DType::f32);
  if (accumulate) at::add_out(gradient_, gradient_, sum);
}

void UnitStore::end_reduction() {
  bind(whole_gradient_, nullptr);
  gradient_buffer_ = at::Tensor();
}

void UnitStore::all_reduce() {
  finish_gradient();
  groups_->replicate()->all_reduce(bytes_of(gradient_), DType::f32);
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
  at::Tensor& kept = levels_.at(static_cast<size_t>(level));
  if (!sharded()) {
    kept = gradient_.clone();
    return;
  }
  kept = std::move(gradient_buffer_);
  bind(whole_gradient_, nullptr);
}

void UnitStore::add_gradient(int level) {
  finish_gradient();
  at::Tensor earlier = std::move(levels_.at(static_cast<size_t>(level)));
  at::Tensor sum = written_gradient();
  at::add_out(sum, earlier, sum);
}

void UnitStore::initialize(uint64_t seed) {
  for (size_t i = 0; i < spec_.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec_.parameters[i];
    int64_t begin = layout_.offsets[i];
    for (const Segment& segment : parameter.segments) {
      const int64_t end = begin + segment.rows * parameter.row_elements();
      const HeldRange range = held(begin, end);
      fill_initial(master_.data_ptr<float>() + range.local, range.begin - begin, range.size(), segment.init,
                   stream_key(seed, "init:" + segment.hf_name));
      begin = end;
    }
  }
}

ModelStore::ModelStore(const std::vector<UnitSpec>& units, DType gather_dtype, bool with_gradients,
                       std::shared_ptr<const DataGroups> groups)
    : groups_(std::move(groups)) {
  for (const auto& unit : units)
    units_.push_back(std::make_unique<UnitStore>(unit, gather_dtype, with_gradients, groups_));
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
