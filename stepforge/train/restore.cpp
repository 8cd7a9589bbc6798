// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/restore.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/train/taken_parts.h"

namespace stepforge {

namespace {

/// Warns if the schedule's new length makes the learning rate jump.
void warn_of_new_schedule(const Trainer& trainer, const TrainerState& saved) {
  const int64_t steps = trainer.state.schedule_steps;
  if (saved.schedule_steps == 0 || saved.schedule_steps == steps) return;
  LrSchedulerConfig old_config = trainer.config.lr_scheduler;
  old_config.total_steps = saved.schedule_steps;
  const double peak = trainer.config.optimizer.lr;
  const int64_t position = saved.step - saved.schedule_begin;
  const double before =
      peak *
      LearningRateSchedule(old_config, saved.schedule_steps, trainer.config.extensions).factor(position);
  const double now = peak * trainer.schedule->factor(position);
  if (std::abs(now - before) <= 0.01 * before) return;
  trainer.log.warning(
      "the schedule has {} steps instead of {}: the learning rate continues at {:.2e} instead of {:.2e}; "
      "lr_scheduler.total_steps={} keeps the old schedule",
      steps, saved.schedule_steps, now, before, saved.schedule_steps);
}

/// Logs what was not loaded, and what was not expected, some lines of each kind.
void log_differences(const Trainer& trainer, const std::filesystem::path& source,
                     const TensorDifferences& differences) {
  if (differences.none()) return;
  trainer.log.warning(
      "checkpoint.strict = false: {} tensors of {} match the model, {} differ in the number of rows, "
      "{} are missing, {} differ in shape or type, {} are left out",
      differences.equal, source.string(), differences.other_rows.size(), differences.missing.size(),
      differences.different.size(), differences.unexpected.size());
  constexpr size_t kLines = 50;
  for (const auto& [lines, outcome] :
       {std::pair{&differences.other_rows,
                  "the rows that both have are loaded, others keep their initial values"},
        std::pair{&differences.missing, "keeps its initial values"},
        std::pair{&differences.different, "keeps its initial values"},
        std::pair{&differences.unexpected, "left out"}}) {
    const size_t shown = std::min(lines->size(), kLines);
    for (size_t i = 0; i < shown; ++i) trainer.log.warning("{}: {}", (*lines)[i], outcome);
    if (shown < lines->size()) trainer.log.warning("and {} more like the last one", lines->size() - shown);
  }
}

/// The saved state, as far as it is to be loaded.
TrainerState loaded_state(const Trainer& trainer, const TrainerState& saved,
                          const CheckpointLoadConfig& load) {
  TrainerState state = load.counters ? saved : TrainerState{};
  state.loader = load.data ? saved.loader : LoaderState{};
  state.schedule_begin = load.schedule ? saved.schedule_begin : state.step;
  state.arithmetic = trainer.state.arithmetic;
  state.data_content = trainer.state.data_content;
  state.tokenizer = trainer.state.tokenizer;
  return state;
}

/// "; not loaded: optimizer, schedule"
std::string not_loaded(const CheckpointLoadConfig& load) {
  std::vector<std::string> names;
  for (const auto& [loaded, name] :
       {std::pair{load.optimizer, "optimizer"}, std::pair{load.schedule, "schedule"},
        std::pair{load.data, "data"}, std::pair{load.counters, "counters"}})
    if (!loaded) names.emplace_back(name);
  return names.empty() ? "" : format("; not loaded: {}", join(names, ", "));
}

/// Throws UsageError if the checkpoint's configuration does not allow what is asked for; logs how it differs.
ConfigChanges check_changes(const Trainer& trainer, const Json& json, const std::filesystem::path& folder,
                            bool own) {
  ConfigChanges changes = compare_with_checkpoint(json, trainer.config, trainer.job.batch.rows_per_step,
                                                  (folder / "state.json").string(), own);
  if (!changes.refused.empty()) {
    throw UsageError(format("the checkpoint {} belongs to another run:\n  {}", folder.string(),
                            join(changes.refused, "\n  ")));
  }
  if (own && !changes.load.counters) {
    throw UsageError(
        format("checkpoint.load.counters = false: {} is a checkpoint of this run, whose steps cannot "
               "count from 0 again; name another run_dir, with checkpoint.initial_load_path = \"{}\" and "
               "initial_load_model_only = false",
               folder.string(), folder.string()));
  }
  for (const auto& change : changes.accepted) trainer.log.info("changed since the checkpoint: {}", change);
  if (!changes.load.optimizer && changes.load.schedule) {
    trainer.log.warning(
        "the optimizer's state begins anew, but the learning rate continues without a warm-up; "
        "checkpoint.load.schedule=false begins a new schedule");
  }
  return changes;
}

/// Throws UsageError if a file was changed where the fingerprint of the data has no sample, or the tokenizer. Older
/// checkpoints do not tell.
void require_same_contents(const Trainer& trainer, const TrainerState& saved,
                           const std::filesystem::path& folder) {
  const auto require = [&](const std::string& before, const std::string& now, std::string_view what) {
    if (before.empty() || now.empty() || before == now) return;
    throw UsageError(
        format("the checkpoint {} was written with {} of other contents (hash {}, now {}): "
               "a file was changed since; restore it, or set checkpoint.allow_changed = [\"data\"]",
               folder.string(), what, before, now));
  };
  require(saved.tokenizer, trainer.state.tokenizer, "a tokenizer");
  require(saved.data_content, trainer.state.data_content, "data");
}

}  // namespace

void load_weights_as_asked(const Trainer& trainer, const std::filesystem::path& source,
                           const std::function<void(TensorDifferences* accepted)>& load) {
  if (trainer.config.checkpoint.strict) return load(nullptr);
  TensorDifferences accepted;
  load(&accepted);
  log_differences(trainer, source, accepted);
}

void restore_checkpoint(Trainer& trainer, const FoundCheckpoint& found, bool own) {
  const std::filesystem::path& folder = found.path;
  const Json json = read_checkpoint_state(found);
  const ConfigChanges changes = check_changes(trainer, json, folder, own);
  const CheckpointLoadConfig& load = changes.load;
  const TrainerState saved = state_from_json(json, (folder / "state.json").string());
  const auto taken =
      continued_parts(trainer, known_checkpoint(folder, trainer.config.model.plugins), found.frozen.taken);
  load_weights_as_asked(trainer, folder, [&](TensorDifferences* accepted) {
    load_checkpoint(found, trainer.job.model(), *trainer.store,
                    load.optimizer ? trainer.optimizer.get() : nullptr, accepted, taken ? &*taken : nullptr);
  });
  const auto& allowed = trainer.config.checkpoint.allow_changed;
  const bool data_may_change = std::find(allowed.begin(), allowed.end(), Guard::data) != allowed.end();
  const bool may_differ = data_may_change || changes.other_rows;
  if (load.data) trainer.loader->restore(saved.loader, may_differ);
  if (load.data && !may_differ) require_same_contents(trainer, saved, folder);
  if (!saved.arithmetic.empty() && saved.arithmetic != trainer.state.arithmetic) {
    trainer.log.warning("the last bits can differ from an uninterrupted run: saved with {}, resumed with {}",
                        saved.arithmetic, trainer.state.arithmetic);
  }
  const int64_t steps = trainer.state.schedule_steps;
  trainer.state = loaded_state(trainer, saved, load);
  trainer.state.schedule_steps = steps;
  if (trainer.state.schedule_begin > 0) build_schedule(trainer);
  if (load.schedule) warn_of_new_schedule(trainer, saved);
  trainer.resumed = true;
  // "callbacks" is missing in older checkpoints.
  const auto states = load.counters ? json.value("callbacks", std::vector<Json>()) : std::vector<Json>();
  for (const std::string& name : trainer.callbacks.restore(trainer, states)) {
    trainer.log.warning("the checkpoint has the state of a callback \"{}\", which this run does not have",
                        name);
  }
  trainer.log.info("resumed from {} at step {}{}", folder.string(), trainer.state.step, not_loaded(load));
}

}  // namespace stepforge
