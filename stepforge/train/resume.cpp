// SPDX-License-Identifier: Apache-2.0
// Where a run continues: its own newest checkpoint, a given step, or another model's weights.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "stepforge/base/error.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/catalog/layers.h"
#include "stepforge/catalog/model_comparison.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/storage/tensor_collectives.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/train/initial_magnitudes.h"
#include "stepforge/train/restore.h"
#include "stepforge/train/taken_parts.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

void resume_own(Trainer& trainer, const FoundCheckpoint& found) {
  restore_checkpoint(trainer, found, /*own=*/true);
  trainer.last_saved_step = found.step;
}

/// Throws UsageError if the model saved in `source` computes differently, unless the configuration accepts
/// it. The vocabulary may be larger than the saved one, layers of multi-token prediction may be left out, and a score may take the
/// place of a vocabulary.
void require_same_model(const Trainer& trainer, const std::filesystem::path& source, ModelConfig saved) {
  const ModelConfig& model = trainer.config.model;
  saved.vocab_size = std::max(saved.vocab_size, model.vocab_size);
  saved.n_mtp_layers = std::min(saved.n_mtp_layers, model.n_mtp_layers);
  if (model.scores()) saved.head = model.head;
  const std::vector<std::string> differences = model_differences(saved, model);
  if (differences.empty()) return;
  const auto& allowed = trainer.config.checkpoint.allow_changed;
  if (std::find(allowed.begin(), allowed.end(), Guard::model) == allowed.end()) {
    throw UsageError(format(
        "the model in {} differs from [model]:\n"
        "  {}\n"
        "A new run takes all of its values with model.from, in place of checkpoint.initial_load_path and "
        "[model]; if the shapes are equal, checkpoint.allow_changed = [\"model\"] accepts the differences, "
        "and with checkpoint.strict = false others too",
        source.string(), join(differences, "\n  ")));
  }
  for (const std::string& difference : differences) trainer.log.info("{}: {}", source.string(), difference);
}

/// Keeps the generation settings of the model that the run starts from, for a later export.
void keep_generation_config(const Trainer& trainer, const std::filesystem::path& folder) {
  const Json generation = read_generation_config(folder);
  if (!trainer.is_main() || generation.is_null()) return;
  write_file_atomic(std::filesystem::path(trainer.config.run_dir) / kGenerationFileName,
                    generation.dump(2) + "\n");
}

/// Throws UsageError if the weights belong to an adapter that the run does not have.
void require_adapter(const Trainer& trainer, const KnownModel& known, const TensorFolder& weights) {
  if (trainer.config.adapter.enabled() || !has_adapters(weights)) return;
  throw UsageError(format(
      "{} holds an adapter beside the model's weights: merge it with `stepforge export {} FOLDER --merge` and "
      "start from that folder, or add the section [adapter] of its run",
      known.weights.string(), known.weights.string()));
}

/// Those that nothing was loaded for start beside the weights as they are now.
void start_magnitudes(Trainer& trainer) {
  set_initial_magnitudes(trainer.job.part, *trainer.store,
                         tensor_exchange(*trainer.groups, plan_tensor(trainer.config, trainer.place)));
}

/// Logs that the score of a reward model begins anew. Throws UsageError if it would not be trained.
void announce_score(const Trainer& trainer, const std::filesystem::path& source) {
  for (const UnitSpec& unit : trainer.job.model().units) {
    if (unit.has(ParameterTag::score) && !unit.trainable)
      throw UsageError(
          format("model.freeze matches the score, but {} has none to start from: name other weights",
                 source.string()));
  }
  trainer.log.info(
      "{} has no {}: the score starts at normal values (model.score_init_std = {}), and the weights of the "
      "vocabulary's head (lm_head.weight) are not read",
      source.string(), kScoreTensor, trainer.config.model.score_init_std);
}

/// `taken_hash`: FrozenWeights::taken, if they are those of a checkpoint.
void load_weights(Trainer& trainer, const KnownModel& known, const std::function<TensorFolder()>& open,
                  const std::string& taken_hash = "") {
  const TensorFolder weights = open();
  const bool adapted = has_adapters(weights);
  require_adapter(trainer, known, weights);
  require_same_model(trainer, known.weights, known.config.model);
  const int64_t stored = known.config.model.vocab_size;
  const int64_t grown = trainer.config.model.vocab_size - stored;
  if (grown > 0) {
    trainer.log.info(
        "the vocabulary has {} more tokens than {}: their weights start at the mean of the others", grown,
        known.weights.string());
  }
  const bool new_score = trainer.config.model.scores() && !known.config.model.scores();
  if (new_score) announce_score(trainer, known.weights);
  const auto taken = adapted ? continued_parts(trainer, known, taken_hash) : new_parts(trainer, open);
  load_weights_as_asked(trainer, known.weights, [&](TensorDifferences* accepted) {
    import_weights(weights, trainer.job.model(), *trainer.store,
                   {.stored_vocabulary = grown > 0 ? stored : 0,
                    .accepted = accepted,
                    .tensors = adapted ? ImportedTensors::all : ImportedTensors::base,
                    .new_score = new_score,
                    .taken = taken ? &*taken : nullptr});
  });
  if (taken && !adapted)
    import_weights(taken->factors(), trainer.job.model(), *trainer.store,
                   {.tensors = ImportedTensors::factors});
  trainer.log.info("weights loaded from {}", known.weights.string());
  if (!weights.note().empty()) trainer.log.info("{}", weights.note());
  if (const std::string note = left_out(weights, trainer.job.model()); !note.empty())
    trainer.log.warning("{}", note);
}

void load_weights(Trainer& trainer, const FoundCheckpoint& found) {
  load_weights(
      trainer, known_checkpoint(found.path, trainer.config.model.plugins),
      [found] { return checkpoint_tensors(found); }, found.frozen.taken);
}

/// Throws UsageError if the checkpoint from which the run starts has trained what this run freezes and leaves to the model that
/// both began with.
void require_frozen_there(const std::filesystem::path& start, const std::vector<std::string>& names) {
  if (!has_manifest(start)) return;
  const std::filesystem::path file = start / kStateFileName;
  const FrozenWeights there = frozen_weights_of(read_json_file(file), file.string());
  if (there.none()) return;  // it has all weights itself
  for (const std::string& name : names) {
    if (there.contains(name)) continue;
    throw UsageError(format(
        "{} was trained in {}, but this run freezes it, and checkpoints leave frozen weights to {}: train it too "
        "(adapter.bias, adapter.also_train), or start from what `stepforge export {} FOLDER --merge` writes",
        name, start.string(), there.from.string(), start.string()));
  }
}

/// Decides which frozen weights checkpoints of this run leave out, and where these are. `own`: the checkpoint from which the
/// run was continued. Throws UsageError unless the run's frozen weights are those of that place.
void leave_out_frozen(Trainer& trainer, const std::optional<FoundCheckpoint>& own) {
  FrozenWeights& frozen = trainer.left_out;
  frozen.from =
      std::filesystem::absolute(home_of_frozen_weights(trainer.config.checkpoint.initial_load_path));
  std::vector<std::string> names = frozen_names(trainer.job.model());
  std::ranges::sort(names);
  if (own && own->frozen.from == frozen.from && own->frozen.names() == names) {
    frozen = own->frozen;
    return;
  }
  if (!own) require_frozen_there(trainer.config.checkpoint.initial_load_path, names);
  const std::string subject =
      format("checkpoint.exclude_frozen: checkpoints leave frozen weights to {}", frozen.from.string());
  const CheckpointRanks& ranks = *trainer.checkpoint_ranks;
  const auto open = [from = frozen.from] { return open_weights(from); };
  frozen.hashes = hash_tensors(open, names, ranks, subject);
  if (own) {
    const Json of_run = hash_tensors([own] { return checkpoint_tensors(*own); }, names, ranks, subject);
    require_equal_hashes(frozen.hashes, of_run,
                         format("{}, but those of {} differ", subject, own->path.string()));
  }
  const TensorFolder source = open();
  for (const NamedTensor& tensor : named_tensors(trainer.job.model())) {
    if (!frozen.contains(tensor.name)) continue;
    const std::vector<int64_t> there = WeightReader(source, tensor.name).shape();
    if (there == tensor.shape) continue;
    throw UsageError(
        format("{}, but {} is {} there and {} in the model; remove exclude_frozen, or train this tensor",
               subject, tensor.name, shape_text(there), shape_text(tensor.shape)));
  }
}

/// Continues from a checkpoint of the run's own folder. One of step 0 without optimizer state was made by an
/// import: only its weights are loaded.
void continue_run(Trainer& trainer, const FoundCheckpoint& found) {
  if (found.step == 0 && !read_checkpoint_state(found).contains(kOptimizerSteps)) {
    return load_weights(trainer, found);
  }
  resume_own(trainer, found);
}

void initial_load(Trainer& trainer) {
  const auto& checkpoint = trainer.config.checkpoint;
  const std::filesystem::path path = checkpoint.initial_load_path;
  if (has_manifest(path)) {
    const FoundCheckpoint found = verify_checkpoint(path, *trainer.checkpoint_ranks);
    if (!checkpoint.initial_load_model_only) return restore_checkpoint(trainer, found, /*own=*/false);
    load_weights(trainer, found);
    return keep_generation_config(trainer, known_checkpoint(path).folder);
  }
  load_weights(trainer, known_hf_folder(path, trainer.config.model.plugins),
               [path] { return open_hf_weights(path); });
  keep_generation_config(trainer, path);
}

/// A folder of PEFT, which a new run starts from.
void load_adapter(Trainer& trainer) {
  const AdapterFiles adapter = open_peft_folder(trainer.config.adapter.from);
  const AdapterType type = trainer.config.adapter.type;
  if (adapter.config.type != type)
    throw UsageError(
        format("adapter.type = \"{}\", but the adapter in adapter.from = \"{}\" is one of {}; "
               "remove adapter.type, which the folder says",
               choice_name(type), trainer.config.adapter.from, choice_name(adapter.config.type)));
  if (const AdapterBias bias = trainer.config.adapter.bias; adapter.config.bias != bias)
    throw UsageError(format(
        "adapter.bias = \"{}\", but the adapter in adapter.from = \"{}\" has \"{}\"; remove adapter.bias, "
        "which the folder says",
        choice_name(bias), trainer.config.adapter.from, choice_name(adapter.config.bias)));
  require_biases(adapter, trainer.job.model());
  const std::filesystem::path base = trainer.config.checkpoint.initial_load_path;
  if (has_base_copies(adapter))
    require_base_copies(adapter, trainer.job.model(),
                        has_manifest(base)
                            ? checkpoint_tensors(verify_checkpoint(base, *trainer.checkpoint_ranks))
                            : open_hf_weights(base));
  import_weights(adapter.weights, trainer.job.model(), *trainer.store,
                 {.tensors = ImportedTensors::trained,
                  .new_score = trainer.config.model.scores() && !has_score(adapter.weights)});
  trainer.log.info("adapter loaded from {}", trainer.config.adapter.from);
}

/// All ranks, with their own communicator, because they save while training continues.
std::unique_ptr<CheckpointRanks> build_checkpoint_ranks(const Trainer& trainer) {
  const double limit = trainer.config.checkpoint.timeout;
  return std::make_unique<CheckpointRanks>(group_of_all(trainer.world(), "checkpoint"), limit);
}

/// What the run folder tells of earlier starts, the same on all ranks.
struct EarlierStarts {
  std::string saved;  ///< why there must be a checkpoint of a trained step; "" if there need not be one
  int64_t of_this_launch = 0;  ///< the last step saved by an earlier attempt of the launch; 0: none
};

EarlierStarts read_earlier_starts(const RunFolder& folder, const Trainer& trainer) {
  EarlierStarts earlier;
  const bool restarted = trainer.is_restart();
  std::error_code none;
  if (folder.history().empty() && std::filesystem::file_size(folder.metrics_file(), none) > 0 && !none) {
    earlier.saved = format("{} is missing or was damaged, but there are metrics of an earlier start",
                           folder.history_file().string());
  }
  for (const RunStart& start : folder.history()) {
    if (start.saved_step == 0) continue;
    earlier.saved = format("{} says that a checkpoint of step {} was saved", folder.history_file().string(),
                           start.saved_step);
    if (restarted && start.launch_id == trainer.launch.id) earlier.of_this_launch = start.saved_step;
  }
  return earlier;
}

/// Rank 0 has the run folder.
EarlierStarts earlier_starts(const Trainer& trainer) {
  EarlierStarts own;
  if (trainer.is_main()) own = read_earlier_starts(*trainer.run_folder, trainer);
  const Json of_rank0 = Json::parse(
      trainer.checkpoint_ranks->run([own] { return Json{own.saved, own.of_this_launch}.dump(); })[0]);
  return {of_rank0.at(0), of_rank0.at(1)};
}

constexpr std::string_view kStartOver =
    "to start over, name another run_dir; checkpoint.resume = false, which starts over, "
    "is refused in this one";

/// Warns if the last start went back to an earlier step and did not reach this one again.
void warn_if_gone_back(const Trainer& trainer, int64_t step) {
  const std::vector<RunStart>& starts = trainer.run_folder->history();
  const auto reached = [&](const RunStart& start) {
    return std::max(start.end_step, start.saved_step) >= step;
  };
  if (starts.empty() || reached(starts.back()) || std::ranges::none_of(starts, reached)) return;
  trainer.log.warning(
      "continuing from step {}, the newest checkpoint, although the last start went back and ended at step "
      "{}; checkpoint.load_step={} continues that one",
      step, starts.back().end_step, std::max(starts.back().begin_step, starts.back().saved_step));
}

/// Continues from the newest checkpoint of the run's own folder, which it returns. Throws UsageError if all are damaged, or
/// if it would start over although later steps were saved.
std::optional<FoundCheckpoint> continue_from_newest(Trainer& trainer, const EarlierStarts& earlier) {
  const std::filesystem::path dir = trainer.checkpoint_dir();
  std::optional<FoundCheckpoint> found;
  try {
    found = newest_complete_checkpoint(dir, trainer.log, *trainer.checkpoint_ranks,
                                       trainer.config.checkpoint.initial_load_path);
  } catch (const UsageError& damage) {
    throw UsageError(format("{}\n{}", damage.what(), kStartOver));
  }
  const int64_t step = found ? found->step : 0;
  if (step == 0 && !earlier.saved.empty()) {
    throw UsageError(format("{}; {} has no usable checkpoint after step 0: is its disk mounted?\n{}",
                            earlier.saved, dir.string(), kStartOver));
  }
  if (!found) return std::nullopt;
  if (trainer.is_main() && step > 0) warn_if_gone_back(trainer, step);
  continue_run(trainer, *found);
  set_aside_later_steps(dir, step, trainer.log, *trainer.checkpoint_ranks);
  return found;
}

/// Without it the first save would wait for its memory.
void prepare_saves(Trainer& trainer) {
  Json state = Json::object();
  if (!trainer.left_out.none()) state[kFrozenWeights] = trainer.left_out.to_json();
  try {
    trainer.checkpoints->prepare(
        reserve_checkpoint(trainer.job.part, *trainer.store, trainer.optimizer.get(), state));
  } catch (const std::bad_alloc&) {
    trainer.log.info("there is no memory for the copy of a checkpoint yet; the first save waits for it");
  }
}

}  // namespace

void build_checkpoint(Trainer& trainer) {
  const auto& checkpoint = trainer.config.checkpoint;
  trainer.checkpoint_ranks = build_checkpoint_ranks(trainer);
  const CheckpointRanks& ranks = *trainer.checkpoint_ranks;
  const EarlierStarts earlier = earlier_starts(trainer);
  std::optional<FoundCheckpoint> own;
  if (checkpoint.resume && checkpoint.load_step < 0) {
    own = continue_from_newest(trainer, earlier);
  } else {
    // load_step and resume = false are for the first attempt of a launch; a restarted one continues from its
    // own last checkpoint.
    const int64_t step = earlier.of_this_launch > 0 ? earlier.of_this_launch : checkpoint.load_step;
    if (step >= 0) {
      own = checkpoint_of_step(trainer.checkpoint_dir(), step, ranks, checkpoint.initial_load_path);
      resume_own(trainer, *own);
    }
  }
  if (!own && !checkpoint.initial_load_path.empty()) initial_load(trainer);
  if (!own && !trainer.config.adapter.from.empty()) load_adapter(trainer);
  start_magnitudes(trainer);
  const bool adapted = trainer.config.adapter.enabled() && !checkpoint.initial_load_path.empty();
  if (checkpoint.exclude_frozen || (checkpoint.enable && adapted)) leave_out_frozen(trainer, own);
  if (trainer.config.adapter.takes_parts())
    trainer.left_out.taken = initial_adapter_hash(trainer.config.run_dir);
  if (checkpoint.enable) {
    trainer.checkpoints = std::make_unique<CheckpointWriter>(
        trainer.checkpoint_dir(), checkpoint.keep_latest_k, trainer.log, checkpoint.async, &ranks);
    prepare_saves(trainer);
  }
}

}  // namespace stepforge
