// SPDX-License-Identifier: Apache-2.0
// Implements the loading functions of native.h.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/checkpoint/stored_weight.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

bool is_tensor_file(const FileRecord& file) {
  return fs::path(file.name).extension() == ".safetensors";
}

}  // namespace

bool is_optimizer_file(const FileRecord& file) {
  return is_tensor_file(file) && file.name.find("optimizer") != std::string::npos;
}

namespace {

/// The manifest itself has no hash, so its layout is compared with the files.
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

/// A manifest must list a state and tensors.
void require_parts(const fs::path& folder, const CheckpointManifest& manifest) {
  const auto lists = [&](const auto& wanted) {
    return std::any_of(manifest.files.begin(), manifest.files.end(), wanted);
  };
  const bool state = lists([](const FileRecord& file) { return file.name == kStateFileName; });
  if (state && lists(is_tensor_file)) return;
  throw FormatError(format("damaged checkpoint {}: {} does not list {}", folder.string(), kManifestFileName,
                           state ? "any safetensors file" : kStateFileName));
}

/// Folders named like a checkpoint, but without a manifest. They are damaged: a folder gets its name only
/// when it is complete.
std::vector<fs::path> folders_without_manifest(const fs::path& dir) {
  std::vector<fs::path> found;
  if (!fs::exists(dir)) return found;
  std::error_code failure;
  for (const fs::path& path : entries_of(dir)) {
    if (!checkpoint_step(path.filename().string())) continue;
    if (!fs::is_directory(path, failure) || is_regular_file_itself(path / kManifestFileName)) continue;
    found.push_back(path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// The steps of `dir`, newest first, and the errors for damaged folders.
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

/// A slot in messages: "exp_avg", "exp_avg (bf16)".
std::string slot_text(std::string_view name, DType dtype) {
  return dtype == DType::f32 ? std::string(name) : format("{} ({})", name, dtype_name(dtype));
}

/// The folder has optimizer state of these slots.
void require_slots(const FoundCheckpoint& checkpoint, const TensorFolder& folder,
                   const std::set<std::string>& slots) {
  std::set<std::string> found;
  for (const std::string& name : folder.names())
    if (is_optimizer_tensor(name))
      found.insert(slot_text(name.substr(name.rfind('.') + 1), folder.find(name)->dtype));
  if (found == slots) return;
  if (found.empty()) {
    throw Error(format("checkpoint {} holds weights only, no optimizer state to resume from",
                       checkpoint.path.string()));
  }
  const auto text = [](const std::set<std::string>& names) {
    return names.empty() ? std::string("none") : join(std::vector(names.begin(), names.end()), ", ");
  };
  throw Error(format(
      "checkpoint {} is of another optimizer: its state is {}, but optimizer.name needs {}; resume with "
      "the same optimizer, or start a new run from its weights with model.from",
      checkpoint.path.string(), text(found), text(slots)));
}

/// `optimizer`: null if only weights are loaded. `accepted`: see load_checkpoint().
TensorComparison require_fit(const FoundCheckpoint& checkpoint, const TensorFolder& folder,
                             const ModelSpec& model, const Optimizer* optimizer,
                             TensorDifferences* accepted) {
  static constexpr std::array<DType, 1> kMasters = {DType::f32};
  TensorComparison comparison(folder);
  std::set<std::string> slots;
  std::vector<NamedTensor> frozen;
  for (const NamedTensor& tensor : named_tensors(model)) {
    if (checkpoint.frozen.contains(tensor.name)) {
      frozen.push_back(tensor);
    } else {
      comparison.expect(tensor.name, tensor.shape, kMasters);
    }
    const UnitSpec& unit = model.units.at(tensor.unit);
    if (optimizer == nullptr || !unit.trainable) continue;
    for (const SlotSpec& slot : optimizer->groups().optimizer.slots(unit.parameters.at(tensor.parameter))) {
      const std::array<DType, 1> type = {slot.dtype};
      comparison.expect(optimizer_tensor_name(tensor.name, slot.name), slot.shape(tensor.shape), type);
      slots.insert(slot_text(slot.name, slot.dtype));
    }
  }
  expect_weights(comparison, folder, frozen);
  if (optimizer != nullptr) require_slots(checkpoint, folder, slots);
  comparison.finish(
      format("{} is a checkpoint of another model", checkpoint.path.string()),
      [optimizer](std::string_view name) { return optimizer == nullptr && is_optimizer_tensor(name); },
      accepted);
  return comparison;
}

/// Reads what is `usable` of `slice` of tensor `name` into `values`, which are shaped as the slice.
void read_usable(const TensorFolder& folder, const std::string& name, const TensorSlice& slice,
                 const std::optional<TensorSlice>& usable, const at::Tensor& values) {
  if (!usable) return;
  // What is left of a slice are its first elements: only rows may be missing.
  const auto known = intersection(slice, *usable);
  if (!known) return;
  const at::Tensor target = values.view({-1}).narrow(0, 0, known->elements());
  const at::Tensor on_host =
      target.is_cpu() ? target : at::empty(target.sizes(), target.options().device(at::kCPU));
  folder.read(name, *known, bytes_of(on_host));
  if (!target.is_cpu()) target.copy_(on_host);
}

int64_t optimizer_steps(const Json& state, const FoundCheckpoint& checkpoint) {
  const auto steps = state.find(kOptimizerSteps);
  // get<int64_t>() turns larger unsigned numbers into negative ones.
  if (steps == state.end() || !steps->is_number_integer() || steps->get<int64_t>() < 0 ||
      steps->get<int64_t>() > kMaxSteps) {
    throw FormatError(format("{}: field \"{}\" is not an integer from 0 to {}",
                             (checkpoint.path / kStateFileName).string(), kOptimizerSteps, kMaxSteps));
  }
  return steps->get<int64_t>();
}

/// The trainer's step in the state, if it has one, must be the manifest's.
void require_step(const FoundCheckpoint& checkpoint) {
  const Json state = read_checkpoint_state(checkpoint);
  const auto step = state.find("step");
  if (step == state.end() || *step == checkpoint.step) return;
  throw FormatError(format("damaged checkpoint {}: {} is of step {}, {} of step {}", checkpoint.path.string(),
                           kStateFileName, step->dump(), kManifestFileName, checkpoint.step));
}

/// The step of a checkpoint and the hash of its manifest, as far as one of several ranks checks it; or the
/// damage that the rank found. As JSON. Throws Error if it cannot be read.
std::string check_share(const fs::path& step_folder, int rank, int ranks) {
  try {
    const CheckpointManifest manifest = verify_folder(step_folder, rank, ranks);
    require_parts(step_folder, manifest);
    require_layout(step_folder, manifest);
    require_step({step_folder, manifest.step});
    return Json{{"step", manifest.step}, {"hash", file_hash(step_folder / kManifestFileName)}}.dump();
  } catch (const FormatError& failure) {
    return Json{{"damage", failure.what()}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

/// The frozen weights that the checkpoint leaves out, after comparing them with those found.
FrozenWeights verified_frozen_weights(const fs::path& step_folder, const CheckpointRanks& ranks,
                                      const fs::path& from) {
  FrozenWeights frozen =
      frozen_weights_of(read_checkpoint_state({step_folder}), (step_folder / kStateFileName).string());
  if (frozen.none()) return frozen;
  if (!from.empty()) frozen.from = fs::absolute(home_of_frozen_weights(from));
  const std::string subject = format("{} was saved without its frozen weights, which must be those of {}",
                                     step_folder.string(), frozen.from.string());
  const Json found =
      hash_tensors([home = frozen.from] { return open_weights(home); }, frozen.names(), ranks, subject);
  require_equal_hashes(frozen.hashes, found,
                       subject + "; give the model that the run started from (checkpoint.initial_load_path)");
  return frozen;
}

}  // namespace

FoundCheckpoint verify_checkpoint(const fs::path& step_folder, const CheckpointRanks& ranks,
                                  const fs::path& frozen_from) {
  const std::vector<std::string> results = ranks.run(
      [=, rank = ranks.rank(), size = ranks.size()] { return check_share(step_folder, rank, size); });
  std::set<std::string> damage;
  int64_t step = 0;
  for (const std::string& result : results) {
    const Json json = Json::parse(result);
    if (json.contains("damage")) {
      damage.insert(json.at("damage").get<std::string>());
    } else {
      step = json.at("step");
    }
  }
  if (!damage.empty()) throw FormatError(join({damage.begin(), damage.end()}, "; "));
  for (size_t rank = 1; rank < results.size(); ++rank) {
    if (results[rank] == results[0]) continue;
    throw Error(format("{} of rank {} differs from that of rank 0; all ranks must use one common run folder",
                       (step_folder / kManifestFileName).string(), rank));
  }
  return {step_folder, step, verified_frozen_weights(step_folder, ranks, frozen_from)};
}

FoundCheckpoint checkpoint_of_step(const fs::path& dir, int64_t step, const CheckpointRanks& ranks,
                                   const fs::path& frozen_from) {
  const fs::path path = dir / checkpoint_folder_name(step);
  // Rank 0 decides for all ranks whether it exists.
  const std::string fault = ranks.run([=, leads = ranks.rank() == 0]() -> std::string {
    std::error_code failure;
    if (!leads || fs::is_directory(path, failure)) return "";
    std::vector<std::string> there;
    for (const CheckpointFolder& folder : list_checkpoints(dir)) there.push_back(format("{}", folder.step));
    return format("there is no checkpoint of step {} in {}; available steps: {}", step, dir.string(),
                  there.empty() ? std::string("none") : join(there, ", "));
  })[0];
  if (!fault.empty()) throw UsageError(fault);
  return verify_checkpoint(path, ranks, frozen_from);
}

std::optional<FoundCheckpoint> newest_complete_checkpoint(const fs::path& dir, Logger& logger,
                                                          const CheckpointRanks& ranks,
                                                          const fs::path& frozen_from) {
  const Json there =
      Json::parse(ranks.run([=, leads = ranks.rank() == 0] { return leads ? survey(dir) : ""; })[0]);
  auto damage = there.at("damaged").get<std::vector<std::string>>();
  std::optional<FoundCheckpoint> found;
  for (const Json& step : there.at("steps")) {
    try {
      found = checkpoint_of_step(dir, step.get<int64_t>(), ranks, frozen_from);
      break;
    } catch (const FormatError& failure) {
      damage.emplace_back(failure.what());
    }
  }
  if (!found && !damage.empty()) {
    throw UsageError(
        format("no checkpoint in {} can be used, and none was changed; put back a whole copy of one:\n  {}",
               dir.string(), join(damage, "\n  ")));
  }
  for (const std::string& reason : damage)
    logger.error("{}; {} is used instead", reason, found->path.string());
  return found;
}

void set_aside_later_steps(const fs::path& dir, int64_t step, Logger& logger, const CheckpointRanks& ranks) {
  const std::string renamed = ranks.run([=, leads = ranks.rank() == 0] {
    std::vector<std::string> names;
    for (const fs::path& path : leads ? entries_of(dir) : std::vector<fs::path>()) {
      if (checkpoint_step(path.filename().string()).value_or(0) <= step) continue;
      names.push_back(set_aside(path, ".damaged").filename().string());
    }
    return join(names, ", ");
  })[0];
  if (!renamed.empty()) logger.warning("damaged checkpoints are kept as {} in {}", renamed, dir.string());
}

Json read_checkpoint_state(const FoundCheckpoint& checkpoint) {
  Json state = read_json_file(checkpoint.path / kStateFileName);
  if (!state.is_object()) {
    throw FormatError(format("{}: not a JSON object", (checkpoint.path / kStateFileName).string()));
  }
  return state;
}

TensorFolder stored_tensors(const fs::path& step_folder) {
  std::vector<fs::path> files;
  for (const FileRecord& file : read_manifest(step_folder).files) {
    if (is_tensor_file(file)) files.push_back(step_folder / file.name);
  }
  return TensorFolder(files);
}

TensorFolder checkpoint_tensors(const FoundCheckpoint& checkpoint) {
  TensorFolder folder = stored_tensors(checkpoint.path);
  if (!checkpoint.frozen.none()) add_frozen_weights(folder, checkpoint.frozen);
  return folder;
}

Json load_checkpoint(const FoundCheckpoint& checkpoint, const ModelSpec& model, ModelStore& store,
                     Optimizer* optimizer, TensorDifferences* accepted, const InitialAdapter* taken) {
  Json state = read_checkpoint_state(checkpoint);
  const TensorFolder folder = checkpoint_tensors(checkpoint);
  const TensorComparison comparison = require_fit(checkpoint, folder, model, optimizer, accepted);
  const int64_t steps = optimizer == nullptr ? 0 : optimizer_steps(state, checkpoint);

  load_masters(folder, comparison, store, taken);
  for (const NamedTensor& tensor : named_tensors(store)) {
    const UnitStore& unit = store.unit(tensor.unit);
    if (optimizer == nullptr || !unit.trained()) continue;
    const UnitState& state_of_unit = optimizer->state(tensor.unit);
    const std::vector<ShardSlice> slices = shard_slices(unit, tensor);
    for (const int slot : state_of_unit.layout().of(tensor.parameter)) {
      const SlotSpec& spec = state_of_unit.layout().slots().at(static_cast<size_t>(slot));
      const std::string name = optimizer_tensor_name(tensor.name, spec.name);
      const std::optional<TensorSlice> usable = comparison.usable(name);
      for (const ShardSlice& held : slices)
        read_usable(folder, name, spec.slice(held.slice), usable,
                    state_of_unit.values(slot, tensor.parameter, held));
    }
  }
  if (optimizer != nullptr) optimizer->set_steps(steps);
  return state;
}

Json load_checkpoint(const fs::path& step_folder, const ModelSpec& model, ModelStore& store,
                     Optimizer* optimizer) {
  return load_checkpoint(verify_checkpoint(step_folder), model, store, optimizer);
}

}  // namespace stepforge
