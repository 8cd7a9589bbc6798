#include "app/torch/loaded_model.h"

#include "base/error.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/native.h"
#include "config/load.h"
#include "models/families.h"
#include "models/forwards.h"
#include "train/job_data.h"

namespace stepforge {

namespace {

namespace fs = std::filesystem;

LoadedModel from_hf(const fs::path& folder, DType compute) {
  LoadedModel model;
  model.config.model = hf_model_config(folder);
  model.spec = model_spec(model.config.model);
  model.store = std::make_unique<ModelStore>(model.spec.units, compute, /*with_gradients=*/false);
  import_hf(folder, model.spec, *model.store);
  if (fs::exists(folder / "tokenizer.json")) model.tokenizer = load_tokenizer(folder);
  return model;
}

LoadedModel from_checkpoint(const FoundCheckpoint& found, DType compute, Logger& log) {
  const Json state = read_checkpoint_state(found);
  LoadedModel model;
  model.config =
      parse_config(state.value("config", std::string()), (found.path / "state.json").string()).config;
  model.config.parallelism = {};  // evaluated on one rank, however it was trained
  model.spec = model_spec(model.config.model, model.config.training.loss_chunk);
  model.store = std::make_unique<ModelStore>(model.spec.units, compute, /*with_gradients=*/false);
  load_checkpoint(found, model.spec, *model.store, nullptr);
  // The run may have moved since: its tokenizer lies beside its checkpoints.
  model.config.run_dir = fs::absolute(found.path).parent_path().parent_path().string();
  model.tokenizer = tokenizer_of_run(model.config);
  return model;
}

/// The checkpoint folder of a run, by its configuration.
fs::path checkpoint_folder(const fs::path& run) {
  const Config config = load_config(run / "config.toml").config;
  return run / config.checkpoint.folder;
}

}  // namespace

ModelForward LoadedModel::forward(int64_t context_length) const {
  return build_forward(config.model, store->lookup(), {context_length, config.training.loss_chunk});
}

LoadedModel load_model(const fs::path& path, DType compute, Logger& log) {
  if (fs::exists(path / "manifest.json")) return from_checkpoint(verify_checkpoint(path), compute, log);
  if (fs::exists(path / "config.json")) return from_hf(path, compute);
  if (fs::exists(path / "config.toml")) {
    const auto found = newest_complete_checkpoint(checkpoint_folder(path), log);
    if (found) return from_checkpoint(*found, compute, log);
    throw UsageError(format("the run {} has no complete checkpoint yet", path.string()));
  }
  throw UsageError(
      format("{} is no model: expected a checkpoint (manifest.json), a run folder (config.toml) or a Hugging "
             "Face folder (config.json)",
             path.string()));
}

DType parse_compute(const std::string& name) {
  if (name == "fp32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  throw UsageError(format("--compute {}: expected fp32 or bf16", name));
}

}  // namespace stepforge
