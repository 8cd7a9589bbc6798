// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/unit_store.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/kernels/random_fill.h"
#include "stepforge/kernels/weight_codes.h"
#include "stepforge/storage/tensor_parts.h"

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

/// Points the storage of `tensor` and its views to `bytes`, which something else owns; null: no memory.
void bind(const at::Tensor& tensor, void* bytes) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(bytes, tensor.device()));
}

/// A flat tensor whose storage has no bytes yet.
at::Tensor unbound(int64_t size, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({size}, options);
  bind(tensor, nullptr);
  return tensor;
}

}  // namespace

UnitStore::UnitStore(const UnitSpec& spec, const UnitLayout& layout, const StoreOptions& options,
                     const GroupCommunicators& groups)
    : spec_(spec),
      layout_(layout),
      options_(options),
      groups_(&groups),
      shards_(spec, layout.partition, groups.layout().size_of(layout.shard_group)),
      shard_(groups.layout().index_in(layout.shard_group)) {
  if (spec.coded_factors) coded_factors_.emplace(spec_, shards_, shard_);
  master_ = at::zeros({coded() ? spec.stored_bytes(shard_size()) : shard_size()},
                      resting_options(scalar_type(spec.master)));
  if (!layout_.offloaded) working_master_ = master_;
  values_ = resident() ? master_ : unbound(gathered_size(), working_options(scalar_type(layout_.gather)));
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    // variable_data gives each leaf its own version counter, so that refilling the memory does not fail
    // autograd's checks of saved tensors.
    parameters_.emplace_back(&spec.parameters[i], view(values_, shards_.gathered(), i).variable_data(),
                             at::Tensor());
  }
  if (options_.with_gradient && spec.trainable) allow_gradient();
}

at::TensorOptions UnitStore::resting_options(at::ScalarType type) const {
  if (!rests_on_host()) return working_options(type);
  return at::device(at::kCPU).dtype(type).pinned_memory(options_.pinned);
}

void UnitStore::allow_gradient() {
  if (trained()) return;
  gradient_ = at::zeros({shard_size()}, resting_options(at::kFloat));
  if (!layout_.offloaded) working_gradient_ = gradient_;
  if (!writes_in_place()) whole_gradient_ = unbound(gathered_size(), working_options(at::kFloat));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor value = parameters_[i].value();
    value.set_requires_grad(true);
    parameters_[i] = Parameter(&spec_.parameters[i], value, view(written_gradient(), shards_.gathered(), i));
  }
}

at::Tensor UnitStore::view(const at::Tensor& flat, const FlatLayout& layout, size_t index) const {
  const ParameterSpec& parameter = spec_.parameters.at(index);
  return flat.narrow(0, layout.offsets.at(index), parameter.elements()).view(parameter.shape);
}

at::Tensor UnitStore::master_view(size_t index) const {
  return view(master_, shards_.gathered(), index);
}

ShardRange UnitStore::local_range(size_t first, size_t last) const {
  return shards_.local_range(shard_, first, last);
}

std::vector<ShardSlice> UnitStore::slices(size_t index, int64_t begin, int64_t end) const {
  return shards_.slices(shard_, index, begin, end);
}

std::vector<ShardSlice> UnitStore::slices(size_t index) const {
  return shards_.slices(shard_, index);
}

template <typename Visit>
void UnitStore::for_each_piece(const at::Tensor& joined, const FlatLayout& layout, const at::Tensor& flat,
                               const Visit& visit) const {
  for (size_t i = 0; i < spec_.parameters.size(); ++i) {
    const at::Tensor tensor = view(flat, layout, i);
    for (int rank = 0; rank < shards_.shards(); ++rank) {
      for (const ShardSlice& slice : shards_.slices(rank, i)) {
        visit(part_of(tensor, slice.slice),
              part_of(joined, ShardSlice{slice.slice, rank * shard_size() + slice.local}));
      }
    }
  }
}

at::Tensor UnitStore::whole(const at::Tensor& shard) const {
  if (!sharded()) return shard;
  const at::Tensor joined = at::empty({shards_.joined_size()}, shard.options());
  shard_group(Lane::compute).all_gather(bytes_of(shard), bytes_of(joined), options_.unit);
  const FlatLayout layout = flat_layout(spec_);
  if (shards_.partition().kind == PartitionKind::flat) return joined.narrow(0, 0, layout.size);
  at::Tensor result = at::zeros({layout.size}, shard.options());
  for_each_piece(joined, layout, result,
                 [](const at::Tensor& part, const at::Tensor& piece) { part.copy_(piece); });
  return result;
}

void UnitStore::gather(at::Tensor slot) {
  fill(slot);
  bind_values(std::move(slot));
}

void UnitStore::fill(const at::Tensor& slot) const {
  const at::NoGradGuard no_grad;
  if (shards_.joined_is_gathered()) {
    const at::Tensor part = slot.narrow(0, shard_size() * shard_, shard_size());
    copy_values(working_master_, part);
    if (sharded()) shard_group(Lane::gather).all_gather(bytes_of(part), bytes_of(slot), options_.unit);
    return;
  }
  const at::Tensor joined = at::empty({shards_.joined_size()}, slot.options());
  const at::Tensor part = joined.narrow(0, shard_size() * shard_, shard_size());
  copy_values(working_master_, part);
  shard_group(Lane::gather).all_gather(bytes_of(part), bytes_of(joined), options_.unit);
  for_each_piece(joined, shards_.gathered(), slot,
                 [](const at::Tensor& part, const at::Tensor& piece) { part.copy_(piece); });
}

void UnitStore::copy_values(const at::Tensor& stored, const at::Tensor& to) const {
  if (!coded()) {
    to.copy_(stored, /*non_blocking=*/true);
    return;
  }
  if (coded_factors_)
    dequantize_weights(spec_.code, coded_factors_->decode(stored), to);
  else
    dequantize_weights(spec_.code, stored, to);
}

at::Tensor UnitStore::master_values() const {
  if (!coded()) return master_;
  const at::Tensor values = at::empty({shard_size()}, master_.options().dtype(at::kFloat));
  copy_values(master_, values);
  return values;
}

void UnitStore::store(int64_t begin, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  if (!coded()) {
    master_.narrow(0, begin, values.numel()).copy_(values);
    return;
  }
  require_whole_blocks(spec_, begin, values.numel());
  if (coded_factors_)
    coded_factors_->store_weights(begin, values, master_);
  else
    quantize_weights(spec_.code, values, master_, begin);
}

void UnitStore::store_factors(size_t index, int64_t row, const TensorFactors& factors) {
  const at::NoGradGuard no_grad;
  coded_factors_.value().store(index, row, factors, master_);
}

void UnitStore::bind_values(at::Tensor slot) {
  slot_ = std::move(slot);
  bind(values_, slot_.data_ptr());  // slot_ owns the memory
}

void UnitStore::release() {
  bind(values_, nullptr);
  slot_ = at::Tensor();
}

void UnitStore::start_gradient(at::Tensor buffer) {
  for (auto& parameter : parameters_) parameter.start_gradient();
  if (writes_in_place()) return;
  gradient_buffer_ = std::move(buffer);
  clear_padding(gradient_buffer_);
  bind(whole_gradient_, gradient_buffer_.data_ptr());
}

void UnitStore::clear_padding(const at::Tensor& gathered) const {
  const FlatLayout& layout = shards_.gathered();
  std::vector<std::pair<int64_t, int64_t>> tensors;  // sorted by position
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    tensors.emplace_back(layout.offsets[i], layout.offsets[i] + spec_.parameters[i].elements());
  }
  std::sort(tensors.begin(), tensors.end());
  tensors.emplace_back(gathered.numel(), gathered.numel());
  int64_t end = 0;
  for (const auto& [first, last] : tensors) {
    if (end < first) gathered.narrow(0, end, first - end).zero_();
    end = last;
  }
}

void UnitStore::reduce(bool accumulate) {
  const at::NoGradGuard no_grad;
  const bool as_written = layout_.reduce == DType::f32 && shards_.joined_is_gathered();
  if (sharded() && as_written && !accumulate) {
    Communicator& shards = shard_group(Lane::reduce);
    shards.reduce_scatter(bytes_of(whole_gradient_), bytes_of(working_gradient_), DType::f32, options_.unit);
    return;
  }
  at::Tensor sum = whole_gradient_;
  if (sharded()) {
    if (reduce_scale() != 1.0) whole_gradient_.mul_(reduce_scale());
    sum = reduced(whole_gradient_, TrainedParts(shards_));
    if (reduce_scale() != 1.0) sum.mul_(1.0 / reduce_scale());
  }
  if (accumulate) {
    working_gradient_.add_(sum);
  } else {
    working_gradient_.copy_(sum);
  }
}

at::Tensor UnitStore::reduced(const at::Tensor& written, const TrainedParts& parts) const {
  const at::NoGradGuard no_grad;
  if (!sharded()) return written.clone();
  const at::ScalarType type = scalar_type(layout_.reduce);
  at::Tensor joined = written;
  if (!shards_.joined_is_gathered()) {
    joined = at::zeros({shards_.joined_size()}, working_options(type));
    for_each_piece(joined, shards_.gathered(), written,
                   [](const at::Tensor& part, const at::Tensor& piece) { piece.copy_(part); });
  }
  joined = parts.pack_joined(joined).to(type);
  const at::Tensor sum = at::empty({parts.size()}, working_options(type));
  shard_group(Lane::reduce).reduce_scatter(bytes_of(joined), bytes_of(sum), layout_.reduce, options_.unit);
  return parts.unpack(sum.to(at::kFloat), shard_);
}

void UnitStore::end_reduction() {
  bind(whole_gradient_, nullptr);
  gradient_buffer_ = at::Tensor();
}

void UnitStore::all_reduce() {
  const at::NoGradGuard no_grad;
  if (reduce_scale() != 1.0) working_gradient_.mul_(reduce_scale());
  all_reduce(working_gradient_, TrainedParts(shards_));
  if (reduce_scale() != 1.0) working_gradient_.mul_(1.0 / reduce_scale());
}

void UnitStore::all_reduce(const at::Tensor& shard, const TrainedParts& parts) const {
  const at::NoGradGuard no_grad;
  const int rank = shard_;
  // The shard itself if all of it is trained and reduced in fp32.
  const at::Tensor sent = parts.pack_shard(shard, rank).to(scalar_type(layout_.reduce));
  Communicator& replicas = *groups_->at(layout_.replica_group(), Lane::reduce);
  replicas.all_reduce(bytes_of(sent), layout_.reduce, options_.unit);
  if (!sent.is_same(shard)) shard.copy_(parts.unpack(sent, rank));
}

void UnitStore::add_copies(Communicator& copies, const at::Tensor& gradient) const {
  if (gradient.is_cpu()) wait_for_device(device());
  copies.all_reduce(bytes_of(gradient), DType::f32, options_.unit);
}

void UnitStore::finish_gradient() {
  for (auto& parameter : parameters_) parameter.finish_gradient();
}

at::Tensor UnitStore::take_gradient() {
  if (writes_in_place()) return gradient_.clone();
  bind(whole_gradient_, nullptr);
  return std::exchange(gradient_buffer_, {});
}

void UnitStore::add_gradient(const at::Tensor& earlier) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor added = view(earlier, shards_.gathered(), i);
    parameters_[i].write_now([&](at::Tensor gradient, bool accumulate) {
      if (accumulate) {
        at::add_out(gradient, added, gradient);
      } else {
        gradient.copy_(added);
      }
    });
  }
}

namespace {

/// The factors of all blocks of a tensor that begins with these values.
TensorFactors initial_factors(const Initializer& init, uint64_t key, int64_t elements) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  TensorFactors factors(elements);
  const at::Tensor chunk = at::empty({std::min(kChunk, elements)}, at::device(at::kCPU).dtype(at::kFloat));
  for (int64_t begin = 0; begin < elements; begin += kChunk) {
    const at::Tensor values = chunk.narrow(0, 0, std::min(kChunk, elements - begin));
    fill_initial(values.mutable_data_ptr<float>(), begin, values.numel(), init, key);
    factors.add(begin, values);
  }
  return factors;
}

}  // namespace

void UnitStore::initialize(uint64_t seed) {
  // The masters themselves, unless they are stored in another dtype or not on the host.
  const at::Tensor wide = coded() ? at::zeros({shard_size()}, at::device(at::kCPU).dtype(at::kFloat))
                                  : master_.to(at::device(at::kCPU).dtype(at::kFloat));
  for (size_t i = 0; i < spec_.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec_.parameters[i];
    int64_t row = 0;
    for (size_t s = 0; s < parameter.sub_tensors.size(); ++s) {
      const SubTensor& sub_tensor = parameter.sub_tensors[s];
      const std::vector<int64_t> shape = parameter.tensor_shape(s);
      const std::vector<int64_t> begin = parameter.slice_of(s).offsets;
      const uint64_t key = stream_key(seed, "init:" + sub_tensor.hf_name);
      const std::vector<ShardSlice> all_held = slices(i, row, row + sub_tensor.rows);
      for (const ShardSlice& held : all_held) {
        for (const ShardRun& run : runs_of(shape, {moved(held.slice, begin), held.local})) {
          fill_initial(wide.data_ptr<float>() + run.local, run.element, run.count, sub_tensor.init, key);
        }
      }
      if (coded_factors_ && !all_held.empty())
        store_factors(i, row, initial_factors(sub_tensor.init, key, parameter.tensor_elements(s)));
      row += sub_tensor.rows;
    }
  }
  if (!wide.is_same(master_)) store(0, wide);
}

ModelStore::ModelStore(const std::vector<UnitSpec>& units, const RankLayout& layout,
                       const StoreOptions& options, std::shared_ptr<const GroupCommunicators> groups)
    : compute_(options.compute), groups_(std::move(groups)) {
  StoreOptions numbered = options;
  for (size_t u = 0; u < units.size(); ++u) {
    numbered.unit = static_cast<int>(u);
    units_.push_back(std::make_unique<UnitStore>(units[u], layout.units.at(u), numbered, *groups_));
    for (Parameter& parameter : units_.back()->parameters()) {
      parameters_.emplace(parameter.spec().name, &parameter);
    }
  }
}

c10::Stream ModelStore::lane_stream(Lane lane) const {
  std::optional<c10::Stream>& stream = lane_streams_.at(static_cast<size_t>(lane));
  if (!stream) stream = compute_.backend->new_stream(compute_.device);
  return *stream;
}

Parameter& ModelStore::parameter(std::string_view name) {
  const auto found = parameters_.find(name);
  if (found == parameters_.end()) throw Error(format("the model has no parameter \"{}\"", name));
  return *found->second;
}

ParameterLookup ModelStore::lookup() {
  return [this](std::string_view name) -> Parameter& { return parameter(name); };
}

void ModelStore::initialize(uint64_t seed, bool with_frozen) {
  for (auto& unit : units_)
    if (with_frozen || unit->spec().trainable || unit->spec().state) unit->initialize(seed);
}

}  // namespace stepforge
