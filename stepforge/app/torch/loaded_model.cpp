// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/loaded_model.h"

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/config/load.h"
#include "stepforge/models/decoder.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/tensorfile/hf_index.h"

namespace stepforge {

namespace {

namespace fs = std::filesystem;

ModelFiles from_hf(const fs::path& folder) {
  Config config;
  config.model = hf_model_config(folder);
  ModelSpec spec = model_spec(config.model);
  std::unique_ptr<Tokenizer> tokenizer;
  if (fs::exists(folder / "tokenizer.json")) tokenizer = load_tokenizer(folder);
  return {std::move(config),       std::move(spec),
          std::move(tokenizer),    folder,
          open_hf_weights(folder), read_generation_config(folder)};
}

ModelFiles from_checkpoint(const FoundCheckpoint& found) {
  const Json state = read_checkpoint_state(found);
  Config config =
      parse_config(state.value("config", std::string()), (found.path / "state.json").string()).config;
  config.parallelism = {};  // evaluated on one rank
  ModelSpec spec = model_spec(config.model, config.training.loss_chunk);
  // The run folder may have been moved, so its tokenizer is found relative to the checkpoint.
  config.run_dir = fs::absolute(found.path).parent_path().parent_path().string();
  std::unique_ptr<Tokenizer> tokenizer = tokenizer_of_run(config);
  Json generation = read_generation_config(config.run_dir);
  std::filesystem::path folder = run_tokenizer_folder(config);
  return {std::move(config), std::move(spec),           std::move(tokenizer),
          std::move(folder), checkpoint_tensors(found), std::move(generation)};
}

/// The folder of checkpoints that the run's configuration names.
fs::path checkpoint_folder(const fs::path& run) {
  const Config config = load_config(run / "config.toml").config;
  return run / config.checkpoint.folder;
}

}  // namespace

Model LoadedModel::forward(int64_t context_length) const {
  return make_model(config.model, store->lookup(), {context_length, config.training.loss_chunk});
}

ModelFiles open_model(const fs::path& path, Logger& log) {
  if (fs::exists(path / "manifest.json")) return from_checkpoint(verify_checkpoint(path));
  if (fs::exists(path / "config.json")) return from_hf(path);
  if (fs::exists(path / "config.toml")) {
    const auto found = newest_complete_checkpoint(checkpoint_folder(path), log);
    if (found) return from_checkpoint(*found);
    throw UsageError(format("the run {} has no complete checkpoint yet", path.string()));
  }
  throw UsageError(format(
      "{} is not a model: expected a checkpoint (manifest.json), a run folder (config.toml) or a Hugging "
      "Face folder (config.json)",
      path.string()));
}

LoadedModel load_model(const fs::path& path, DType compute, Logger& log) {
  ModelFiles files = open_model(path, log);
  RankLayout layout = rank_layout(files.spec.units, {.gather = compute});
  auto store = std::make_unique<ModelStore>(files.spec.units, layout, StoreOptions{.with_gradient = false});
  import_weights(files.weights, files.spec, *store);
  return {std::move(files.config),    std::move(files.spec),      std::move(layout),
          std::move(store),           std::move(files.tokenizer), std::move(files.tokenizer_folder),
          std::move(files.generation)};
}

}  // namespace stepforge
