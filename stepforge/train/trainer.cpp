#include "stepforge/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/version.h"
#include "stepforge/train/build_steps.h"

namespace stepforge {

Trainer::Trainer(LoadedConfig loaded_config, Logger& logger, const InterruptWatcher* interrupts, World* world)
    : loaded(std::move(loaded_config)),
      config(loaded.config),
      log(logger),
      interrupts_(interrupts),
      world_(world),
      build_steps_(standard_build_steps()) {}

Trainer::~Trainer() = default;

void Trainer::replace_build_step(const std::string& name, std::function<void(Trainer&)> build) {
  for (auto& step : build_steps_) {
    if (step.name == name) {
      step.build = std::move(build);
      return;
    }
  }
  std::vector<std::string> names;
  for (const auto& step : build_steps_) names.push_back(step.name);
  throw Error(format("the trainer has no build step \"{}\"; there are: {}", name, join(names, ", ")));
}

void Trainer::add_callback(std::unique_ptr<Callback> callback) {
  (adding_own_ ? callbacks : added_callbacks_).add(std::move(callback));
}

void Trainer::emit(void (Callback::*event)(Trainer&)) {
  callbacks.emit(event, *this);
  added_callbacks_.emit(event, *this);
}

void Trainer::build() {
  try {
    adding_own_ = true;
    with_predicted_peak(predicted_memory, memory_budget, [this] {
      for (const auto& step : build_steps_) step.build(*this);
    });
    adding_own_ = false;
    emit(&Callback::init_end);
    if (resumed) emit(&Callback::load);
  } catch (const std::exception& failure) {
    if (groups != nullptr) groups->abort(failure.what());
    throw;
  }
}

std::filesystem::path Trainer::checkpoint_dir() const {
  return std::filesystem::path(config.run_dir) / config.checkpoint.folder;
}

RunOutcome Trainer::run() {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if (is_main()) run_folder->begin(version(), commit(), state.step, state.tokens);
  double recorded = 0.0;  // when the history was last written: each time waits for the disk
  try {
    emit(&Callback::train_begin);
    while (state.step < total_steps && !stop_wanted()) {
      if (state.step % steps_per_epoch == 0) emit(&Callback::epoch_begin);
      with_predicted_peak(predicted_memory, memory_budget, [this] { step(); });
      if (checkpoints != nullptr) checkpoints->throw_if_rank_lost();
      if (is_main() && seconds() - recorded >= 1.0) {
        recorded = seconds();
        run_folder->progress(state.step, state.tokens, recorded);
      }
      if (state.step % steps_per_epoch == 0) emit(&Callback::epoch_end);
    }
    const bool save_now = stop_wanted() || config.checkpoint.save_at_end;
    if (save_now && state.step != last_saved_step && state.step > 0) save_checkpoint();
    if (checkpoints != nullptr && !checkpoints->wait()) {
      checkpoints->throw_if_rank_lost();
      throw Error(format(
          "the checkpoint of step {} could not be saved: the steps since the one before are lost; make room "
          "and start the run again",
          last_saved_step));
    }
    emit(&Callback::train_end);
    const bool done = state.step >= total_steps;
    if (is_main()) {
      run_folder->progress(state.step, state.tokens, seconds());
      run_folder->finish(done ? "completed" : "interrupted");
    }
    return done ? RunOutcome::completed : RunOutcome::interrupted;
  } catch (const std::exception& failure) {
    groups->abort(failure.what());
    if (is_main()) {
      run_folder->progress(state.step, state.tokens, seconds());
      run_folder->finish(format("failed: {}", failure.what()));
    }
    throw;
  }
}

void Trainer::step() {
  emit(&Callback::step_begin);
  std::vector<Batch> micro_batches;
  for (int i = 0; i < batch.micro_batches; ++i) micro_batches.push_back(loader->next());

  const double lr_factor = schedule->factor(state.step);
  last_lr = config.optimizer.lr * lr_factor;
  train_step->on_micro_step_end = [this] { emit(&Callback::micro_step_end); };
  train_step->on_pre_update = [this] { emit(&Callback::pre_update); };
  train_step->interrupted = [this] { return interrupted(); };
  last_step = train_step->run(micro_batches, {state.step, lr_factor});

  if (!last_step.updated) handle_nonfinite();
  ++state.step;
  state.tokens += batch.tokens_per_step();
  state.loader = loader->state();
  emit(&Callback::step_end);
  const bool last = state.step == total_steps;
  if (due(config.metrics.log_freq) || state.step == 1 || last) emit(&Callback::log);
  if (due(config.validation.freq) || (last && config.validation.freq > 0)) validate();
  if (due(config.checkpoint.interval)) save_checkpoint();
}

void Trainer::handle_nonfinite() {
  const std::string what =
      format("step {}: loss {}, gradient norm {}: first not finite in {}", state.step + 1, last_step.loss,
             last_step.grad_norm, last_step.first_nonfinite);
  if (config.training.nonfinite == "stop") {
    throw Error(
        what +
        "; weights and moments are those of the step before (training.nonfinite = \"skip\" passes over "
        "such steps)");
  }
  ++state.skipped;
  if (state.skipped > config.training.max_skipped) {
    throw Error(format("{}; more than training.max_skipped = {} steps have been skipped", what,
                       config.training.max_skipped));
  }
  log.warning("{}; the step is skipped ({} of at most {})", what, state.skipped, config.training.max_skipped);
}

void Trainer::validate() {
  if (last_validated_step_ == state.step) return;
  last_validated_step_ = state.step;
  last_validation = evaluate(
      *evaluator, *data.validation, batch.rows_per_micro_batch, config.validation.steps,
      [this] { return interrupted(); }, *groups);
  if (last_validation.stopped) return;  // part of the data says nothing
  emit(&Callback::evaluate);
}

void Trainer::save_checkpoint() {
  if (!config.checkpoint.enable) return;
  last_saved_step = state.step;
  // What a resume takes for done must be on record before it can resume from there.
  metrics->flush();
  checkpoints->save(state.step, stage_checkpoint(model_spec, *store, optimizer.get(),
                                                 state_to_json(state, config), checkpoints->reusable()));
  emit(&Callback::save);
}

}  // namespace stepforge
