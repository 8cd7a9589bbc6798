// The writing half of native.h.
#include "checkpoint/native.h"

#include <cerrno>
#include <cstdio>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>

#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "checkpoint/tensor_names.h"
#include "tensorfile/dcp.h"
#include "tensorfile/manifest.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Makes the staged files the folder `final_path`, atomically also where that one exists: the two change
/// places, and the staging folder, now the old checkpoint, is removed by its owner.
void publish_or_exchange(StagedFolder& folder, const fs::path& final_path) {
  if (!fs::exists(fs::symlink_status(final_path))) return folder.publish();
  fsync_path(folder.staging());
  if (renameat2(AT_FDCWD, folder.staging().c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
    throw Error(format("cannot replace {}: {}; remove it by hand", final_path.string(),
                       std::system_category().message(errno)));
  }
  fsync_path(final_path.has_parent_path() ? final_path.parent_path() : fs::path("."));
}

}  // namespace

int64_t StagedCheckpoint::bytes() const {
  int64_t total = 0;
  for (const auto& tensor : model_) total += tensor.spec.bytes();
  for (const auto& tensor : optimizer_) total += tensor.spec.bytes();
  return total;
}

void StagedCheckpoint::reserve(size_t bytes) {
  if (capacity_ >= bytes) return;
  memory_.reset();  // before the new memory is asked for
  capacity_ = 0;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  capacity_ = bytes;
}

StagedCheckpoint stage_checkpoint(const ModelSpec& model, const ModelStore& store, const AdamW* optimizer,
                                  Json state, StagedCheckpoint reused) {
  if (!state.is_object()) throw Error("a checkpoint's state must be a JSON object");
  const at::NoGradGuard no_grad;
  const size_t slots = optimizer == nullptr ? 0 : AdamW::slot_names.size();

  // Whole flat buffers are copied, padding included: one copy per unit and slot.
  const bool keeps = store.groups().data_rank() == 0;
  const auto slots_of = [&](size_t unit) { return store.unit(unit).trained() ? slots : 0; };
  const auto flat_bytes = [&](size_t unit) {
    return static_cast<size_t>(store.unit(unit).layout().size) * sizeof(float);
  };
  std::vector<size_t> unit_begin;
  size_t total = 0;
  for (size_t unit = 0; unit < store.size(); ++unit) {
    unit_begin.push_back(total);
    total += flat_bytes(unit) * (1 + slots_of(unit));
  }
  if (keeps) reused.reserve(total);
  for (size_t unit = 0; unit < store.size(); ++unit) {
    for (size_t flat = 0; flat <= slots_of(unit); ++flat) {
      const UnitStore& storage = store.unit(unit);
      const at::Tensor whole = storage.whole(flat == 0 ? storage.master() : optimizer->slot(unit, flat - 1));
      if (!keeps) continue;
      std::byte* target = reused.memory_.get() + unit_begin[unit] + flat * flat_bytes(unit);
      at::from_blob(target, whole.sizes(), at::kFloat).copy_(whole);
    }
  }
  if (!keeps) return reused;

  reused.model_.clear();
  reused.optimizer_.clear();
  for (NamedTensor& tensor : named_tensors(model)) {
    size_t begin = unit_begin[tensor.unit] + static_cast<size_t>(tensor.offset) * sizeof(float);
    reused.model_.push_back({{tensor.name, DType::f32, tensor.shape}, begin});
    for (size_t slot = 0; slot < slots_of(tensor.unit); ++slot) {
      begin += flat_bytes(tensor.unit);
      reused.optimizer_.push_back(
          {{optimizer_tensor_name(tensor.name, AdamW::slot_names[slot]), DType::f32, tensor.shape}, begin});
    }
  }
  reused.state_ = std::move(state);
  if (optimizer != nullptr) reused.state_["optimizer_steps"] = optimizer->steps();
  return reused;
}

void StagedCheckpoint::write_tensors(const fs::path& path, const std::vector<StagedTensor>& tensors) const {
  std::vector<TensorSpec> specs;
  for (const StagedTensor& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(path, specs, dcp_metadata(whole_tensor_offsets(specs)));
  for (const StagedTensor& tensor : tensors) {
    const auto bytes = static_cast<size_t>(tensor.spec.bytes());
    writer.write(tensor.spec.name, std::span<const std::byte>(memory_.get() + tensor.begin, bytes));
  }
  writer.finish();
}

void write_checkpoint(const fs::path& dir, int64_t step, const StagedCheckpoint& staged) {
  const fs::path final_path = dir / checkpoint_folder_name(step);
  StagedFolder folder(final_path);
  staged.write_tensors(folder.staging() / kModelFileName, staged.model_);
  if (!staged.optimizer_.empty())
    staged.write_tensors(folder.staging() / kOptimizerFileName, staged.optimizer_);
  write_file_atomic(folder.staging() / kStateFileName, staged.state_.dump(2) + "\n");
  const Json layout = {{"tensor_names", "hugging_face"}, {"optimizer", !staged.optimizer_.empty()}};
  write_manifest(folder.staging(), build_manifest(folder.staging(), step, layout));
  publish_or_exchange(folder, final_path);
}

}  // namespace stepforge
