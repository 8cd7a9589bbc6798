// The reading half of native.h.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "checkpoint/native.h"
#include "checkpoint/tensor_comparison.h"
#include "checkpoint/tensor_names.h"
#include "tensorfile/file_names.h"
#include "tensorfile/hf_index.h"
#include "tensorfile/manifest.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kOptimizerSteps = "optimizer_steps";

bool lists(const CheckpointManifest& manifest, std::string_view name) {
  return std::any_of(manifest.files.begin(), manifest.files.end(),
                     [name](const ManifestFile& file) { return file.name == name; });
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

/// The tensors of all safetensors files that the manifest lists.
TensorFolder open_tensors(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const ManifestFile& file : read_manifest(folder).files) {
    if (fs::path(file.name).extension() == ".safetensors") files.push_back(folder / file.name);
  }
  return TensorFolder(files);
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

/// This rank's part of `tensor`, which the file calls `name`, into `flat`, a shard of its unit.
void copy_tensor(const TensorFolder& folder, const std::string& name, const UnitStore& unit,
                 const NamedTensor& tensor, const at::Tensor& flat) {
  const HeldRange range = unit.held(tensor.offset, tensor.offset + tensor.elements);
  const auto bytes =
      folder.bytes(name).subspan(static_cast<size_t>(range.begin - tensor.offset) * sizeof(float),
                                 static_cast<size_t>(range.size()) * sizeof(float));
  std::memcpy(flat.data_ptr<float>() + range.local, bytes.data(), bytes.size());
}

int64_t optimizer_steps(const Json& state, const FoundCheckpoint& checkpoint) {
  const auto steps = state.find(kOptimizerSteps);
  if (steps == state.end() || !steps->is_number_integer() || steps->get<int64_t>() < 0) {
    throw FormatError(format("{}: field \"{}\" is not a non-negative integer",
                             (checkpoint.path / kStateFileName).string(), kOptimizerSteps));
  }
  return steps->get<int64_t>();
}

}  // namespace

FoundCheckpoint verify_checkpoint(const fs::path& step_folder) {
  const CheckpointManifest manifest = verify_folder(step_folder);
  for (const std::string_view name : {kModelFileName, kStateFileName}) {
    if (!lists(manifest, name)) {
      throw FormatError(format("damaged checkpoint {}: {} does not list {}", step_folder.string(),
                               kManifestFileName, name));
    }
  }
  return {step_folder, manifest.step};
}

FoundCheckpoint checkpoint_of_step(const fs::path& dir, int64_t step) {
  const fs::path path = dir / checkpoint_folder_name(step);
  std::error_code failure;
  if (!fs::is_directory(path, failure)) {
    std::vector<std::string> there;
    for (const CheckpointFolder& folder : list_checkpoints(dir)) there.push_back(format("{}", folder.step));
    throw UsageError(format("there is no checkpoint of step {} in {}; there are steps: {}", step,
                            dir.string(), there.empty() ? std::string("none") : join(there, ", ")));
  }
  FoundCheckpoint found = verify_checkpoint(path);
  if (found.step != step) {
    throw FormatError(
        format("damaged checkpoint {}: its {} is of step {}", path.string(), kManifestFileName, found.step));
  }
  return found;
}

std::optional<FoundCheckpoint> newest_complete_checkpoint(const fs::path& dir, Logger& logger) {
  std::vector<std::string> refused;
  for (const fs::path& path : folders_without_manifest(dir)) {
    refused.push_back(format("damaged checkpoint {}: {}: missing", path.string(), kManifestFileName));
  }
  std::optional<FoundCheckpoint> found;
  for (const CheckpointFolder& folder : list_checkpoints(dir)) {
    try {
      found = checkpoint_of_step(dir, folder.step);
      break;
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

Json load_checkpoint(const FoundCheckpoint& checkpoint, const ModelSpec& model, ModelStore& store,
                     AdamW* optimizer) {
  Json state = read_checkpoint_state(checkpoint);
  const TensorFolder folder = open_tensors(checkpoint.path);
  const std::vector<NamedTensor> tensors = named_tensors(model);
  require_fit(checkpoint, folder, store, tensors, optimizer != nullptr);
  const int64_t steps = optimizer == nullptr ? 0 : optimizer_steps(state, checkpoint);

  for (const NamedTensor& tensor : tensors) {
    const UnitStore& unit = store.unit(tensor.unit);
    copy_tensor(folder, tensor.name, unit, tensor, unit.master());
    if (optimizer == nullptr || !unit.trained()) continue;
    for (size_t slot = 0; slot < AdamW::slot_names.size(); ++slot) {
      copy_tensor(folder, optimizer_tensor_name(tensor.name, AdamW::slot_names[slot]), unit, tensor,
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
