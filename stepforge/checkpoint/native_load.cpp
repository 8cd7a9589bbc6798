// SPDX-License-Identifier: Apache-2.0
// The reading half of native.h.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/file_names.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

bool is_tensor_file(const ManifestFile& file) {
  return fs::path(file.name).extension() == ".safetensors";
}

bool is_optimizer_file(const ManifestFile& file) {
  return is_tensor_file(file) && file.name.find("optimizer") != std::string::npos;
}

/// A manifest is not hashed itself: what it says of its files must be what they are.
void require_layout(const fs::path& folder, const CheckpointManifest& manifest) {
  const auto refuse = [&](const std::string& fault) {
    throw FormatError(format("damaged checkpoint {}: {}: {}", folder.string(), kManifestFileName, fault));
  };
  const Json& layout = manifest.layout;
  if (!layout.is_object()) refuse("field \"layout\" is not a JSON object");
  if (const auto names = layout.find("tensor_names"); names == layout.end() || *names != kTensorNames) {
    refuse(format("field \"layout.tensor_names\" is not \"{}\"", kTensorNames));
  }
  const auto optimizer = layout.find("optimizer");
  if (optimizer == layout.end() || !optimizer->is_boolean()) {
    refuse("field \"layout.optimizer\" is neither true nor false");
  }
  const bool listed = std::any_of(manifest.files.begin(), manifest.files.end(), is_optimizer_file);
  if (optimizer->get<bool>() != listed) {
    refuse(format("field \"layout.optimizer\" is {}, but optimizer files are {}listed", !listed,
                  listed ? "" : "not "));
  }
}

/// A checkpoint has a state and tensors.
void require_parts(const fs::path& folder, const CheckpointManifest& manifest) {
  const auto lists = [&](const auto& wanted) {
    return std::any_of(manifest.files.begin(), manifest.files.end(), wanted);
  };
  const bool state = lists([](const ManifestFile& file) { return file.name == kStateFileName; });
  if (state && lists(is_tensor_file)) return;
  throw FormatError(format("damaged checkpoint {}: {} does not list {}", folder.string(), kManifestFileName,
                           state ? "any safetensors file" : kStateFileName));
}

/// Folders named like a checkpoint, but without a manifest: damaged, since a folder gets its name when it is
/// complete.
std::vector<fs::path> folders_without_manifest(const fs::path& dir) {
  std::vector<fs::path> found;
  std::error_code failure;
  if (!fs::is_directory(dir, failure)) return found;
  for (const fs::path& path : entries_of(dir)) {
    if (!path.filename().string().starts_with("step-") || path.extension() == ".tmp") continue;
    if (!fs::is_directory(path, failure) || is_regular_file_itself(path / kManifestFileName)) continue;
    found.push_back(path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// The steps of `dir`, newest first, and what is wrong with folders that only look like one.
std::string survey(const fs::path& dir) {
  Json found = {{"steps", Json::array()}, {"damaged", Json::array()}};
  for (const fs::path& path : folders_without_manifest(dir)) {
    found["damaged"].push_back(
        format("damaged checkpoint {}: {}: missing", path.string(), kManifestFileName));
  }
  for (const CheckpointFolder& folder : list_checkpoints(dir)) found["steps"].push_back(folder.step);
  return found.dump();
}

bool is_optimizer_tensor(std::string_view name) {
  return name.starts_with(kOptimizerPrefix);
}

void require_fit(const FoundCheckpoint& checkpoint, const TensorFolder& folder, const ModelStore& store,
                 const std::vector<NamedTensor>& tensors, bool with_optimizer) {
  static constexpr std::array<DType, 1> kMasters = {DType::f32};
  const std::vector<std::string> names = folder.names();
  if (with_optimizer && std::none_of(names.begin(), names.end(), is_optimizer_tensor)) {
    throw Error(format("checkpoint {} holds weights only, no optimizer state to resume from",
                       checkpoint.path.string()));
  }
  TensorComparison comparison(folder);
  for (const NamedTensor& tensor : tensors) {
    comparison.expect(tensor.name, tensor.shape, kMasters);
    if (!with_optimizer || !store.unit(tensor.unit).trained()) continue;
    for (const std::string_view slot : AdamW::slot_names) {
      comparison.expect(optimizer_tensor_name(tensor.name, slot), tensor.shape, kMasters);
    }
  }
  comparison.finish(
      format("{} is a checkpoint of another model", checkpoint.path.string()),
      [with_optimizer](std::string_view name) { return !with_optimizer && is_optimizer_tensor(name); });
}

/// This rank's part of `tensor`, which the files call `name`, into `flat`, a shard of its unit.
void read_held(const TensorFolder& folder, const std::string& name, const std::vector<ShardSlice>& held,
               const at::Tensor& flat) {
  for (const ShardSlice& part : held) folder.read(name, part.slice, bytes_of(part_of(flat, part)));
}

int64_t optimizer_steps(const Json& state, const FoundCheckpoint& checkpoint) {
  const auto steps = state.find(kOptimizerSteps);
  // An unsigned number beyond int64_t is negative here.
  if (steps == state.end() || !steps->is_number_integer() || steps->get<int64_t>() < 0 ||
      steps->get<int64_t>() > kMaxSteps) {
    throw FormatError(format("{}: field \"{}\" is not an integer from 0 to {}",
                             (checkpoint.path / kStateFileName).string(), kOptimizerSteps, kMaxSteps));
  }
  return steps->get<int64_t>();
}

/// The trainer's own count of steps, if the state has one, is that of the manifest.
void require_step(const FoundCheckpoint& checkpoint) {
  const Json state = read_checkpoint_state(checkpoint);
  const auto step = state.find("step");
  if (step == state.end() || *step == checkpoint.step) return;
  throw FormatError(format("damaged checkpoint {}: {} is of step {}, {} of step {}", checkpoint.path.string(),
                           kStateFileName, step->dump(), kManifestFileName, checkpoint.step));
}

}  // namespace

FoundCheckpoint verify_checkpoint(const fs::path& step_folder, const CheckpointRanks& ranks) {
  const auto step = std::make_shared<int64_t>();
  const std::vector<std::string> seen = ranks.run([=, rank = ranks.rank(), size = ranks.size()] {
    const CheckpointManifest manifest = verify_folder(step_folder, rank, size);
    require_parts(step_folder, manifest);
    require_layout(step_folder, manifest);
    require_step({step_folder, manifest.step});
    *step = manifest.step;
    return file_hash(step_folder / kManifestFileName);
  });
  for (size_t rank = 1; rank < seen.size(); ++rank) {
    if (seen[rank] == seen[0]) continue;
    throw Error(format("{} of rank {} is not that of rank 0; all ranks need one common run folder",
                       (step_folder / kManifestFileName).string(), rank));
  }
  return {step_folder, *step};
}

FoundCheckpoint checkpoint_of_step(const fs::path& dir, int64_t step, const CheckpointRanks& ranks) {
  const fs::path path = dir / checkpoint_folder_name(step);
  // Rank 0 decides for all ranks whether it exists.
  const std::string fault = ranks.run([=, leads = ranks.rank() == 0]() -> std::string {
    std::error_code failure;
    if (!leads || fs::is_directory(path, failure)) return "";
    std::vector<std::string> there;
    for (const CheckpointFolder& folder : list_checkpoints(dir)) there.push_back(format("{}", folder.step));
    return format("there is no checkpoint of step {} in {}; there are steps: {}", step, dir.string(),
                  there.empty() ? std::string("none") : join(there, ", "));
  })[0];
  if (!fault.empty()) throw UsageError(fault);
  return verify_checkpoint(path, ranks);
}

std::optional<FoundCheckpoint> newest_complete_checkpoint(const fs::path& dir, Logger& logger,
                                                          const CheckpointRanks& ranks) {
  const Json there =
      Json::parse(ranks.run([=, leads = ranks.rank() == 0] { return leads ? survey(dir) : ""; })[0]);
  auto refused = there.at("damaged").get<std::vector<std::string>>();
  std::optional<FoundCheckpoint> found;
  for (const Json& step : there.at("steps")) {
    try {
      found = checkpoint_of_step(dir, step.get<int64_t>(), ranks);
      break;
    } catch (const PeerError&) {
      throw;
    } catch (const Error& failure) {
      refused.emplace_back(failure.what());
    }
  }
  const std::string instead = found ? format("{} is used instead", found->path.string())
                                    : format("no complete checkpoint is left in {}", dir.string());
  for (const std::string& reason : refused) logger.error("{}; {}", reason, instead);
  return found;
}

Json read_checkpoint_state(const FoundCheckpoint& checkpoint) {
  Json state = read_json_file(checkpoint.path / kStateFileName);
  if (!state.is_object()) {
    throw FormatError(format("{}: not a JSON object", (checkpoint.path / kStateFileName).string()));
  }
  return state;
}

TensorFolder checkpoint_tensors(const FoundCheckpoint& checkpoint) {
  std::vector<fs::path> files;
  for (const ManifestFile& file : read_manifest(checkpoint.path).files) {
    if (is_tensor_file(file)) files.push_back(checkpoint.path / file.name);
  }
  return TensorFolder(files);
}

Json load_checkpoint(const FoundCheckpoint& checkpoint, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer) {
  Json state = read_checkpoint_state(checkpoint);
  const TensorFolder folder = checkpoint_tensors(checkpoint);
  const std::vector<NamedTensor> tensors = named_tensors(model);
  require_fit(checkpoint, folder, store, tensors, optimizer != nullptr);
  const int64_t steps = optimizer == nullptr ? 0 : optimizer_steps(state, checkpoint);

  for (const NamedTensor& tensor : tensors) {
    const UnitStore& unit = store.unit(tensor.unit);
    const std::vector<ShardSlice> held = shard_slices(unit, tensor);
    read_held(folder, tensor.name, held, unit.master());
    if (optimizer == nullptr || !unit.trained()) continue;
    for (size_t slot = 0; slot < AdamW::slot_names.size(); ++slot) {
      read_held(folder, optimizer_tensor_name(tensor.name, AdamW::slot_names[slot]), held,
                optimizer->slot(tensor.unit, slot));
    }
  }
  if (optimizer != nullptr) optimizer->set_steps(steps);
  return state;
}

Json load_checkpoint(const fs::path& step_folder, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer) {
  return load_checkpoint(verify_checkpoint(step_folder), model, store, optimizer);
}

}  // namespace stepforge
