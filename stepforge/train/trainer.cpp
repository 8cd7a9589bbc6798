// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/trainer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/version.h"
#include "stepforge/comm/gather.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/plan/unread_options.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/train/callback_kinds.h"
#include "stepforge/train/stream_scope.h"

namespace stepforge {

namespace {

/// FLOPs of training on `batch`: attention counts a token's own document only.
double flops_of(const Batch& batch, const ModelSpec& model) {
  double flops = 0.0;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t length = batch.cu_seqlens[i + 1] - batch.cu_seqlens[i];
    flops += static_cast<double>(length) * model.flops_per_token(length);
  }
  return flops;
}

KernelTable table_of(const KernelsConfig& kernels) {
  KernelTable table;
  table.references_only = kernels.reference;
  return table;
}

}  // namespace

Trainer::Trainer(LoadedConfig loaded_config, Logger& logger, const InterruptWatcher* interrupts, World* world)
    : loaded(std::move(loaded_config)),
      config(loaded.config),
      log(logger),
      interrupts_(interrupts),
      world_(world),
      build_steps_(standard_build_steps()),
      memory_(make_rank_memory(table_of(config.kernels))) {
  refuse_unread_options(loaded);
  for (auto& callback : make_callbacks(config)) add_callback(std::move(callback));
}

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

void Trainer::build() {
  const ChargeMemory charge(memory_);
  try {
    with_predicted_peak(predicted_memory, memory_budget, [this] {
      for (const auto& step : build_steps_) {
        const StreamScope scope(stream_);
        step.build(*this);
        if (!stream_ && !device.device.is_cpu()) stream_ = device.backend->new_stream(device.device);
      }
    });
    const StreamScope scope(stream_);
    callbacks.emit(&Callback::init_end, *this);
    if (resumed) callbacks.emit(&Callback::load, *this);
  } catch (const std::exception& failure) {
    abort_ranks(failure.what());
    throw;
  }
}

void Trainer::abort_ranks(const std::string& reason) const {
  if (all_ranks != nullptr) all_ranks->abort(reason);
  if (groups != nullptr) groups->abort(reason);
}

bool Trainer::is_restart() const {
  return is_main() && launch.restarts > 0 && !launch.id.empty() && !run_folder->history().empty() &&
         run_folder->history().back().launch_id == launch.id;
}

std::filesystem::path Trainer::checkpoint_dir() const {
  return std::filesystem::path(config.run_dir) / config.checkpoint.folder;
}

RunOutcome Trainer::run() {
  const ChargeMemory charge(memory_);
  const StreamScope scope(stream_);
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if (is_main()) {
    RunStart start;
    start.version = version();
    start.commit = commit();
    start.begin_step = state.step;
    start.launch_id = launch.id;
    start.tokens = state.tokens;
    start.labels = state.labels;
    start.data = to_json(data.sources);
    run_folder->begin(std::move(start));
  }
  double recorded = 0.0;  // seconds() when the history was last written: at most once a second
  try {
    callbacks.emit(&Callback::train_begin, *this);
    state.validation_pending = state.validation_pending && config.validation.freq > 0;
    if (state.validation_pending) validate();
    save_kept_step();
    while (state.step < total_steps && !ended_early_ && !stop_wanted()) {
      if (epochs_begun(state.step + 1) > epochs_begun(state.step))
        callbacks.emit(&Callback::epoch_begin, *this);
      with_predicted_peak(predicted_memory, memory_budget, [this] { step(); });
      report_saves();
      if (checkpoints != nullptr) checkpoints->throw_if_rank_lost();
      if (is_main() && seconds() - recorded >= 1.0) {
        recorded = seconds();
        run_folder->progress(state.step, state.tokens, state.labels, recorded);
      }
      if (epochs_ended(state.step) > epochs_ended(state.step - 1))
        callbacks.emit(&Callback::epoch_end, *this);
    }
    finish_saving();
    const bool save_now = stop_wanted() || config.checkpoint.save_at_end;
    if (save_now && state.step != last_saved_step && state.step > 0) {
      save_checkpoint();
      finish_saving();
    }
    if (!last_save.failure.empty()) {
      throw Error(
          format("the checkpoint of step {} could not be saved ({}): the steps since step {} are lost; make "
                 "room and start the run again",
                 last_save.step, last_save.failure, std::max<int64_t>(0, last_saved_step)));
    }
    callbacks.emit(&Callback::train_end, *this);
    if (is_main()) {
      run_folder->progress(state.step, state.tokens, state.labels, seconds());
      run_folder->finish(finished() ? "completed" : "interrupted");
    }
    return finished() ? RunOutcome::completed : RunOutcome::interrupted;
  } catch (const std::exception& failure) {
    abort_ranks(failure.what());
    if (is_main()) {
      run_folder->progress(state.step, state.tokens, state.labels, seconds());
      run_folder->finish(format("failed: {}", failure.what()));
    }
    throw;
  }
}

void Trainer::step() {
  callbacks.emit(&Callback::step_begin, *this);
  const std::vector<Batch> micro_batches = read_rows();

  last_flops = 0.0;
  for (const Batch& rows : micro_batches) last_flops += flops_of(rows, job.whole);
  last_flops /= static_cast<double>(job.layout.dims.cp * job.layout.dims.tp);

  const double lr_factor = schedule->factor(state.step - state.schedule_begin);
  last_lr = config.optimizer.lr * lr_factor;
  train_step->on_micro_step_end = [this] { callbacks.emit(&Callback::micro_step_end, *this); };
  train_step->on_pre_update = {};
  if (callbacks.has_pre_update()) {
    train_step->on_pre_update = [this](const StepResult& so_far) {
      last_step = so_far;
      callbacks.emit_pre_update(*this);
    };
  }
  train_step->interrupted = [this] { return interrupted(); };
  train_step->lacks_rows = data_failure_ != nullptr;
  last_step = train_step->run(micro_batches, {state.step, lr_factor});

  if (last_step.without_rows) end_without_rows();
  if (last_step.valid_labels == 0) {
    handle_unlabelled();
  } else if (!last_step.updated) {
    handle_nonfinite();
  }
  ++state.step;
  state.tokens += last_step.tokens;
  state.labels += last_step.valid_labels;
  state.loader = loader->state();
  if (last_step.valid_labels > 0) state.smoothed_loss.add(last_step.loss, config.metrics.smoothing);
  callbacks.emit(&Callback::step_end, *this);
  const bool last = state.step == total_steps;
  if (due(config.metrics.log_freq) || state.step == 1 || last) log_step();
  if (due(config.validation.freq) || (last && config.validation.freq > 0)) validate();
  if (due(config.checkpoint.interval)) save_checkpoint();
  save_kept_step();
}

void Trainer::log_step() {
  MetricsRecord record{"train", state.step, wall_time_now(), {}};
  callbacks.emit(&Callback::log, *this, record);
  if (!record.values.empty()) metrics->write(std::move(record));
}

void Trainer::handle_nonfinite() {
  const std::string finding =
      format("step {}: loss {}, gradient norm {}: first not finite in {}", state.step + 1, last_step.loss,
             last_step.grad_norm, last_step.first_nonfinite);
  if (config.training.nonfinite == NonfiniteAction::stop) {
    throw Error(finding +
                "; weights and moments are those of the step before (training.nonfinite = \"skip\" "
                "skips such steps)");
  }
  ++state.skipped;
  if (state.skipped > config.training.max_skipped) {
    throw Error(format("{}; more than training.max_skipped = {} steps have been skipped", finding,
                       config.training.max_skipped));
  }
  log.warning("{}; the step is skipped ({} of at most {})", finding, state.skipped,
              config.training.max_skipped);
}

std::vector<Batch> Trainer::read_rows() {
  std::vector<Batch> micro_batches;
  data_failure_ = nullptr;
  try {
    for (int64_t i = 0; i < job.batch.micro_batches(); ++i) micro_batches.push_back(loader->next());
  } catch (const std::exception&) {
    data_failure_ = std::current_exception();
    // Other ranks may have their rows and wait for this one.
    if (all_ranks == nullptr) end_without_rows();
    micro_batches.assign(static_cast<size_t>(job.batch.micro_batches()), loader->blank());
  }
  return micro_batches;
}

void Trainer::end_without_rows() {
  finish_saving();
  if (config.checkpoint.enable && state.step > 0 && state.step != last_saved_step) {
    save_checkpoint();
    finish_saving();
  }
  if (data_failure_) std::rethrow_exception(data_failure_);
  throw Error(format("step {}: another rank could not read its rows; its error says why", state.step + 1));
}

int64_t Trainer::epochs_begun(int64_t step) const {
  const int64_t rows = data.train->rows_per_epoch();
  const int64_t begun = (step * job.batch.rows_per_step + rows - 1) / rows;
  // The last step may be filled up with rows of one epoch more.
  return config.training.epochs > 0 ? std::min(begun, config.training.epochs) : begun;
}

int64_t Trainer::epochs_ended(int64_t step) const {
  return step * job.batch.rows_per_step / data.train->rows_per_epoch();
}

/// Warns of the first such steps, then ever more rarely.
void Trainer::handle_unlabelled() {
  ++state.unlabelled;
  if (!std::has_single_bit(static_cast<uint64_t>(state.unlabelled))) return;
  log.warning(
      "step {}: none of its {} tokens has a label, so it changes nothing and has no loss ({} "
      "such step{} so far)",
      state.step + 1, with_thousands(last_step.tokens), state.unlabelled, state.unlabelled == 1 ? "" : "s");
}

void Trainer::validate() {
  if (last_validated_step_ == state.step) return;
  const bool on_pairs = config.preference.enabled();
  PairTable pairs = on_pairs ? PairTable(*data.validation) : PairTable();
  PairTable mismatched = preferences.loss.has_baseline ? PairTable(*data.validation) : PairTable();
  const auto pass = [&](PairTable& table, AnswerChoice answers) {
    return evaluate(
        *evaluator, *data.validation, job.batch.rows_per_micro_batch, config.validation.steps,
        [this] { return interrupted(); }, job.batch.part,
        on_pairs ? adding_to(table, preferences.loss, *store) : TokenLosses(), answers);
  };
  try {
    last_validation = pass(pairs, AnswerChoice::own);
    if (!mismatched.empty() && !last_validation.stopped)
      last_validation.stopped = pass(mismatched, AnswerChoice::mismatched).stopped;
  } catch (const UnreadableRows&) {
    data_failure_ = std::current_exception();
    state.validation_pending = true;
    end_without_rows();
  }
  state.validation_pending = last_validation.stopped;
  if (last_validation.stopped) return;
  last_validated_step_ = state.step;
  if (last_validation.valid_labels == 0)
    return log.warning("step {}: no token of the validation data has a label, so there is no loss",
                       state.step);
  if (on_pairs) {
    pairs.sum(*store);
    PairScores scores = pairs.scores(preferences.validation);
    if (!mismatched.empty()) {
      mismatched.sum(*store);
      scores.baseline = baseline_of(mismatched.scores(preferences.mismatched_validation));
    }
    last_pairs = pair_result(preferences.loss, scores);
    last_validation.loss = last_pairs.loss;
  }
  callbacks.emit(&Callback::evaluate, *this);
}

void Trainer::save_checkpoint() {
  if (!config.checkpoint.enable) return;
  // A resume does not repeat these steps, so their metrics must be on disk first.
  metrics->flush();
  Json stored = state_to_json(state, config, job.batch.rows_per_step, optimizer->steps());
  stored["callbacks"] = callback_states();
  if (!left_out.none()) stored[kFrozenWeights] = left_out.to_json();
  checkpoints->save(
      state.step,
      stage_checkpoint(job.part, *store, optimizer.get(), std::move(stored), checkpoints->reusable()),
      std::exchange(keep_this_step_, false));
  report_saves();
}

void Trainer::save_kept_step() {
  if (!keep_this_step_ || checkpoints == nullptr) return;
  if (state.step != last_saved_step) return save_checkpoint();
  // A resumed run that had its validation still to do: what it saved has the same weights.
  keep_this_step_ = false;
  checkpoints->keep(state.step);
}

Json Trainer::callback_states() {
  const Json own = callbacks.states(*this);
  Json of_ranks = Json::array();
  if (all_ranks == nullptr) {
    of_ranks.push_back(own);
  } else {
    for (const std::string& text : gather_texts(*all_ranks, own.dump()))
      of_ranks.push_back(Json::parse(text));
  }
  // Without states the file is the same for any number of ranks.
  const bool none = std::ranges::all_of(of_ranks, [](const Json& rank) { return rank.empty(); });
  return none ? Json::array() : of_ranks;
}

/// Emits events for the saves that have ended since the last call.
void Trainer::report_saves() {
  if (checkpoints == nullptr) return;
  for (const SaveOutcome& outcome : checkpoints->take_outcomes()) {
    last_save = outcome;
    if (outcome.failure.empty()) {
      last_saved_step = outcome.step;
      if (is_main()) run_folder->saved(outcome.step);
    }
    if (outcome.failure.empty()) {
      callbacks.emit(&Callback::save, *this, checkpoint_dir() / checkpoint_folder_name(outcome.step));
    } else {
      callbacks.emit(&Callback::save_failed, *this, outcome.failure);
    }
  }
}

void Trainer::finish_saving() {
  if (checkpoints == nullptr) return;
  checkpoints->wait();
  report_saves();
  checkpoints->throw_if_rank_lost();
}

}  // namespace stepforge
