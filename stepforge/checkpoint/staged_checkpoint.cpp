// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/staged_checkpoint.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/staged_memory.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/dcp.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

namespace {

/// Parts in the staged memory begin at multiples of this, for elements of any type.
constexpr size_t kPartAlignment = 4;

/// The bytes of values that are saved in this type.
size_t saved_bytes(const at::Tensor& values, DType dtype) {
  return static_cast<size_t>(values.numel() * dtype_bytes(dtype));
}

size_t staged_bytes(const at::Tensor& values, DType dtype) {
  return (saved_bytes(values, dtype) + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

/// The size of an element of a tensor in a checkpoint, and where its state can be cut.
SavedState saved_state(const ModelStore& store, const Optimizer* optimizer, const NamedTensor& tensor) {
  SavedState state{.weight = dtype_bytes(DType::f32) * kTensorAlignment};
  if (optimizer == nullptr) return state;
  const SlotLayout& layout = optimizer->state(tensor.unit).layout();
  const int64_t blocks = std::max<int64_t>(1, store.unit(tensor.unit).shard_size() / kTensorAlignment);
  state.weight += layout.bytes() / blocks;
  for (const int slot : layout.of(tensor.parameter))
    state.block = std::max(state.block, layout.slots().at(static_cast<size_t>(slot)).block);
  return state;
}

/// The name of file number `file` of the `files` files of one kind that rank `rank` of `ranks` writes.
std::string file_name(std::string_view kind, int rank, int ranks, size_t file, size_t files) {
  if (ranks == 1) return format("{}.safetensors", kind);
  return dcp_file_name(kind, rank, static_cast<int>(file), static_cast<int>(files));
}

}  // namespace

int64_t StagedCheckpoint::bytes() const {
  return static_cast<int64_t>(used_);
}

void StagedCheckpoint::make_pages(const std::stop_token& stop) const {
  stepforge::make_pages({memory_.get(), capacity_}, stop);
}

void StagedCheckpoint::reserve(const Tensors& tensors) {
  size_t bytes = 0;
  for (const auto* all : {&tensors.masters, &tensors.slots})
    for (const Tensor& tensor : *all)
      for (const auto& part : tensor.parts) bytes += staged_bytes(part.second, tensor.dtype);
  // A save that ran into its deadline may still be reading the memory.
  if (capacity_ >= bytes && memory_.use_count() == 1) return;
  memory_.reset();  // before the new memory is allocated
  capacity_ = 0;
  memory_ = map_memory(bytes);
  capacity_ = bytes;
}

void StagedCheckpoint::add(Files& files, const Tensor& tensor) {
  if (files.size() < tensor.parts.size()) files.resize(tensor.parts.size());
  for (size_t i = 0; i < tensor.parts.size(); ++i) {
    const auto& [slice, values] = tensor.parts[i];
    files[i].push_back({tensor.name, tensor.dtype, slice, used_, saved_bytes(values, tensor.dtype)});
    at::from_blob(memory_.get() + used_, values.sizes(),
                  at::device(at::kCPU).dtype(scalar_type(tensor.dtype)))
        .copy_(values);
    used_ += staged_bytes(values, tensor.dtype);
  }
}

std::vector<FileRecord> StagedCheckpoint::write_tensors(const std::filesystem::path& folder, int rank,
                                                        int ranks) const {
  std::vector<FileRecord> records;
  for (const auto& [kind, files] : {std::pair("model", &model_), std::pair("optimizer", &optimizer_)}) {
    for (size_t i = 0; i < files->size(); ++i) {
      std::vector<TensorSpec> specs;
      SavedOffsets offsets;
      for (const Part& part : (*files)[i]) {
        specs.push_back({part.name, part.dtype, part.slice.sizes});
        offsets.emplace(part.name, part.slice.offsets);
      }
      const std::string name = file_name(kind, rank, ranks, i, files->size());
      SafetensorsWriter writer(folder / name, specs, dcp_metadata(offsets));
      for (const Part& part : (*files)[i]) {
        writer.write(part.name, {memory_.get() + part.begin, part.bytes});
      }
      const std::string hash = writer.finish();
      records.push_back({name, writer.written(), hash});
    }
  }
  return records;
}

StagedCheckpoint::Tensors StagedCheckpoint::tensors_of(const ModelSpec& model, const ModelStore& store,
                                                       const Optimizer* optimizer, const Json& state) {
  if (!state.is_object()) throw Error("a checkpoint's state must be a JSON object");
  std::vector<NamedTensor> tensors = named_tensors(model);
  const FrozenWeights left_out = frozen_weights_of(state, "the state");
  std::erase_if(tensors, [&](const NamedTensor& tensor) { return left_out.contains(tensor.name); });
  const auto saved = saved_slices(
      tensors, store, [&](const NamedTensor& tensor) { return saved_state(store, optimizer, tensor); });
  Tensors all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    if (store.unit(tensor.unit).coded())
      throw Error(format("{} is stored as codes, which are not written into checkpoints", tensor.name));
    all.masters.push_back({tensor.name, DType::f32, {}});
    for (const ShardSlice& held : saved[i])
      all.masters.back().parts.emplace_back(held.slice, part_of(store.unit(tensor.unit).master(), held));
    if (optimizer == nullptr || !store.unit(tensor.unit).trained()) continue;
    const UnitState& unit = optimizer->state(tensor.unit);
    for (const int slot : unit.layout().of(tensor.parameter)) {
      const SlotSpec& spec = unit.layout().slots().at(static_cast<size_t>(slot));
      all.slots.push_back({optimizer_tensor_name(tensor.name, spec.name), spec.dtype, {}});
      for (const ShardSlice& held : saved[i])
        all.slots.back().parts.emplace_back(spec.slice(held.slice),
                                            unit.values(slot, tensor.parameter, held));
    }
  }
  return all;
}

StagedCheckpoint reserve_checkpoint(const ModelSpec& model, const ModelStore& store,
                                    const Optimizer* optimizer, const Json& state) {
  StagedCheckpoint reserved;
  reserved.reserve(StagedCheckpoint::tensors_of(model, store, optimizer, state));
  return reserved;
}

StagedCheckpoint stage_checkpoint(const ModelSpec& model, const ModelStore& store, const Optimizer* optimizer,
                                  Json state, StagedCheckpoint reused) {
  const at::NoGradGuard no_grad;
  const StagedCheckpoint::Tensors tensors = StagedCheckpoint::tensors_of(model, store, optimizer, state);
  StagedCheckpoint staged = std::move(reused);
  staged.reserve(tensors);
  staged.used_ = 0;
  staged.model_.clear();
  staged.optimizer_.clear();
  for (const StagedCheckpoint::Tensor& tensor : tensors.masters) staged.add(staged.model_, tensor);
  for (const StagedCheckpoint::Tensor& tensor : tensors.slots) staged.add(staged.optimizer_, tensor);
  staged.state_ = std::move(state);
  if (optimizer != nullptr) staged.state_[kOptimizerSteps] = optimizer->steps();
  return staged;
}

}  // namespace stepforge
