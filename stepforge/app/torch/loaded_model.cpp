// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/loaded_model.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/storage/read_only.h"
#include "stepforge/tensorfile/hf_index.h"

namespace stepforge {

namespace {

namespace fs = std::filesystem;

/// With its own adapters.
ModelSpec spec_of(const Config& config) {
  ModelSpec spec = model_spec(config.model, config.training.loss_chunk);
  add_adapters(spec, config.adapter, storage_of(config.model));
  return spec;
}

/// `taken`: FrozenWeights::taken of a checkpoint.
ModelFiles open_files(KnownModel known, TensorFolder weights, const std::string& taken = "") {
  ModelSpec spec = spec_of(known.config);
  name_shared_factors(spec, weights);
  Json generation = read_generation_config(known.folder);
  auto initial = initial_adapter_of(known.folder, known.config.adapter, spec, taken);
  return {std::move(known), std::move(spec), std::move(weights), std::move(generation), std::move(initial)};
}

ModelFiles open_checkpoint(const FoundCheckpoint& found, const CommandContext& context) {
  KnownModel known = known_checkpoint(found.path, context.plugins);
  known.config.parallelism = {};  // evaluated on one rank
  return open_files(std::move(known), checkpoint_tensors(found), found.frozen.taken);
}

ComputeDevice open_device(const std::string& name, const CommandContext& context) {
  ComputeDevice device = compute_device(name, /*rank_on_host=*/0);
  if (!device.note.empty()) context.log.warning("{}", device.note);
  if (device.add_kernels != nullptr) add_kernels_to_rank(device.add_kernels);
  return device;
}

void require_text(const ModelFiles& model, const fs::path& path) {
  if (!model.config().model.scores()) return;
  throw UsageError(format(
      "{} is a reward model: it scores answers and writes no text; `stepforge eval` compares the answers "
      "of pairs by it",
      path.string()));
}

}  // namespace

Model LoadedModel::forward(int64_t context_length) const {
  return make_model(spec, store->lookup(), {.context_length = context_length, .device = store->device()});
}

ModelFiles open_model(const fs::path& path, const CommandContext& context) {
  switch (model_kind(path)) {
    case ModelKind::checkpoint:
      return open_checkpoint(verify_checkpoint(path), context);
    case ModelKind::hf_folder: {
      ModelFiles files = open_files(known_hf_folder(path, context.plugins), open_hf_weights(path));
      if (!files.weights.note().empty()) context.log.info("{}", files.weights.note());
      return files;
    }
    case ModelKind::run:
      break;
  }
  const auto found = newest_complete_checkpoint(checkpoint_folder_of_run(path), context.log);
  if (!found) throw UsageError(format("the run {} has no complete checkpoint yet", path.string()));
  context.log.info("{}: {}", path.string(), why_step(path, found->step));
  return open_checkpoint(*found, context);
}

LoadedModel load_model(const fs::path& path, const LoadOptions& options, const CommandContext& context) {
  const ComputeDevice device = open_device(options.device, context);
  ModelFiles files = open_model(path, context);
  if (options.writes_text) require_text(files, path);
  const bool changes_rest = files.taken() != nullptr && !options.adapters.empty();
  if (changes_rest && options.with_gradient)
    throw UsageError(format(
        "{} has an adapter that began with parts of the weights (adapter.init = \"pissa\"), and another one belongs "
        "to whole weights: merge its own first, with `stepforge export {} FOLDER --merge`",
        path.string(), path.string()));
  // Norms of whole matrices would be computed again for each token, and other adapters belong to whole weights.
  const bool merges_own =
      !options.with_gradient && (files.config().adapter.type == AdapterType::dora || changes_rest);
  if (merges_own) files.spec = model_spec(files.config().model, files.config().training.loss_chunk);
  AdapterDeltas merged;
  if (!options.adapters.empty())
    merged = read_adapters(options.adapters, files.spec, files.config().adapter.bias);
  if (merges_own) merged.add(files.config().adapter, files.weights, 1.0, /*replaces=*/false, files.taken());
  if (merged.unties(files.spec)) {
    untie(files.known.config.model, files.spec, files.weights);
    files.spec = merges_own ? model_spec(files.config().model, files.config().training.loss_chunk)
                            : spec_of(files.config());
  }
  // Gradients are those of the weights as a run holds them, but nothing is merged into codes.
  for (UnitSpec& unit : files.spec.units)
    if (!options.with_gradient || (unit.code != WeightCode::none && !merged.empty()))
      store_as_read(unit, options.compute);
  auto store = std::make_unique<ModelStore>(
      files.spec.units, rank_layout(files.spec.units, {.gather = options.compute}),
      StoreOptions{.with_gradient = options.with_gradient, .compute = device});
  import_weights(files.weights, files.spec, *store,
                 {.tensors = merges_own ? ImportedTensors::base : ImportedTensors::all,
                  .taken = merges_own ? nullptr : files.taken()});
  merged.merge_into(*store);
  if (const std::string note = left_out(files.weights, files.spec); !note.empty())
    context.log.warning("{}", note);
  return {std::move(files), std::move(store)};
}

}  // namespace stepforge
