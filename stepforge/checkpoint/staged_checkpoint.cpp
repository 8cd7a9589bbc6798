// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/staged_checkpoint.h"

#include <span>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/optimizer_slots.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/dcp.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

namespace {

int64_t bytes_of(const TensorSlice& slice) {
  return slice.elements() * static_cast<int64_t>(sizeof(float));
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

bool StagedCheckpoint::has_optimizer() const {
  return state_.contains(kOptimizerSteps);
}

void StagedCheckpoint::reserve(size_t bytes) {
  // A save that ran into its deadline may still be reading the memory.
  if (capacity_ >= bytes && memory_.use_count() == 1) return;
  memory_.reset();  // before the new memory is allocated
  capacity_ = 0;
  memory_ = std::make_shared_for_overwrite<std::byte[]>(bytes);
  capacity_ = bytes;
}

void StagedCheckpoint::add(Files& files, const std::string& name, const std::vector<ShardSlice>& held,
                           const at::Tensor& flat, int64_t shift) {
  if (files.size() < held.size()) files.resize(held.size());
  for (size_t i = 0; i < held.size(); ++i) {
    const TensorSlice& slice = held[i].slice;
    files[i].push_back({name, slice, used_});
    at::from_blob(memory_.get() + used_, slice.sizes, at::kFloat)
        .copy_(part_of(flat, ShardSlice{slice, held[i].local - shift}));
    used_ += static_cast<size_t>(bytes_of(slice));
  }
}

std::vector<std::string> StagedCheckpoint::write_tensors(const std::filesystem::path& folder, int rank,
                                                         int ranks) const {
  std::vector<std::string> names;
  for (const auto& [kind, files] : {std::pair("model", &model_), std::pair("optimizer", &optimizer_)}) {
    for (size_t i = 0; i < files->size(); ++i) {
      std::vector<TensorSpec> specs;
      SavedOffsets offsets;
      for (const Part& part : (*files)[i]) {
        specs.push_back({part.name, DType::f32, part.slice.sizes});
        offsets.emplace(part.name, part.slice.offsets);
      }
      names.push_back(file_name(kind, rank, ranks, i, files->size()));
      SafetensorsWriter writer(folder / names.back(), specs, dcp_metadata(offsets));
      for (const Part& part : (*files)[i]) {
        writer.write(part.name, {memory_.get() + part.begin, static_cast<size_t>(bytes_of(part.slice))});
      }
      writer.finish();
    }
  }
  return names;
}

StagedCheckpoint stage_checkpoint(const ModelSpec& model, const ModelStore& store, const Optimizer* optimizer,
                                  Json state, StagedCheckpoint reused) {
  if (!state.is_object()) throw Error("a checkpoint's state must be a JSON object");
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> tensors = named_tensors(model);
  const FrozenWeights left_out = frozen_weights_of(state, "the state");
  std::erase_if(tensors, [&](const NamedTensor& tensor) { return left_out.contains(tensor.name); });
  const auto saved = saved_slices(tensors, store, [&](size_t unit) {
    return int64_t{1} + (optimizer == nullptr ? 0 : optimizer->state(unit).layout().slots());
  });
  const auto slots = [&](const NamedTensor& tensor) -> std::span<const std::string_view> {
    if (optimizer == nullptr || !store.unit(tensor.unit).trained()) return {};
    return optimizer_slots(optimizer->groups().settings,
                           store.unit(tensor.unit).spec().parameters.at(tensor.parameter));
  };
  size_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const ShardSlice& held : saved[i]) {
      total += static_cast<size_t>(bytes_of(held.slice)) * (1 + slots(tensors[i]).size());
    }
  }
  StagedCheckpoint staged = std::move(reused);
  staged.reserve(total);
  staged.used_ = 0;
  staged.model_.clear();
  staged.optimizer_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    staged.add(staged.model_, tensor.name, saved[i], store.unit(tensor.unit).master(), 0);
    const std::span<const std::string_view> names = slots(tensor);
    for (size_t slot = 0; slot < names.size() && !saved[i].empty(); ++slot) {
      staged.add(staged.optimizer_, optimizer_tensor_name(tensor.name, names[slot]), saved[i],
                 optimizer->slot(tensor.unit, slot),
                 optimizer->state(tensor.unit).shift(tensor.parameter, static_cast<int>(slot)));
    }
  }
  staged.state_ = std::move(state);
  if (optimizer != nullptr) staged.state_[kOptimizerSteps] = optimizer->steps();
  return staged;
}

}  // namespace stepforge
