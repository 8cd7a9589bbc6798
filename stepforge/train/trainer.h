// SPDX-License-Identifier: Apache-2.0
// The trainer: named build steps create its parts, then a loop runs steps and emits events.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/base/interrupt.h"
#include "stepforge/base/log.h"
#include "stepforge/catalog/lr_schedule.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/writer.h"
#include "stepforge/config/load.h"
#include "stepforge/data/data_plan.h"
#include "stepforge/data/loader.h"
#include "stepforge/kernels/compute_device.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/metrics/run_folder.h"
#include "stepforge/metrics/sink.h"
#include "stepforge/optim/optimizer.h"
#include "stepforge/plan/job.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/text/tokenizer.h"
#include "stepforge/train/callback.h"
#include "stepforge/train/evaluation.h"
#include "stepforge/train/executor.h"
#include "stepforge/train/state.h"
#include "stepforge/train/teacher_targets.h"
#include "stepforge/train/train_step.h"

namespace stepforge {

/// The launch that started this process. `id` is the same in all restarts of a launch, and "" without a
/// launcher.
struct LaunchInfo {
  std::string id;
  int restarts = 0;
};

enum class RunOutcome : uint8_t { completed, interrupted };

/// The parts and the state of a run. They are public: build steps set them, callbacks read them.
class Trainer {
 public:
  /// A named part of building the trainer. Steps run in order; each uses the results of earlier ones.
  struct BuildStep {
    std::string name;
    std::function<void(Trainer&)> build;
  };

  /// `interrupts` may be null. Without `world` there is a single rank; otherwise each rank has a trainer, and
  /// all call the same members in the same order. All arguments passed by reference or pointer must outlive
  /// the trainer.
  Trainer(LoadedConfig loaded, Logger& log, const InterruptWatcher* interrupts, World* world = nullptr);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// The standard steps: ranks, run_folder, threads, device, tokenizer, data, job, steps, step_program,
  /// groups, teacher, reference, parameters, model, optimizer, loader, executor, checkpoint, preferences, answer_ends, metrics. Replace one by
  /// name before build(); throws Error if there is no such step.
  void replace_build_step(const std::string& name, std::function<void(Trainer&)> build);
  const std::vector<BuildStep>& build_steps() const { return build_steps_; }

  /// Runs the build steps. Configuration, data and vocabulary are checked before tensors are allocated.
  void build();

  /// Trains to the last step, or until interrupted. Call build() first. Throws Error if the last checkpoint
  /// could not be saved, or if a step is not finite and training.nonfinite does not allow skipping it.
  RunOutcome run();

  /// Adds to `callbacks`, after those of training.callbacks. Add before build() to receive init_end and load.
  void add_callback(std::unique_ptr<Callback> callback) { callbacks.add(std::move(callback)); }

  /// Saves a checkpoint of the last finished step (in the background unless checkpoint.async is off).
  void save_checkpoint();
  /// Validates, at most once per step; the result is logged and stored in `last_validation`. An interruption
  /// ends it early; the resumed run then starts with the validation.
  void validate();
  /// Ends the run after this step, as completed. All ranks must call it in the same step.
  void end_early() { ended_early_ = true; }
  /// Saves a checkpoint of this step, at the latest when it ends, which keep_latest_k does not delete while it is the last that
  /// was kept. All ranks must call it in the same step.
  void keep_this_step() { keep_this_step_ = true; }
  /// Whether the last step is done, or the run ended early.
  bool finished() const { return (state.step >= total_steps || ended_early_) && !state.validation_pending; }

  /// Whether this rank was asked to stop. Ranks act on StepResult::interrupted, which is the same on all.
  bool interrupted() const { return interrupts_ != nullptr && interrupts_->requested(); }
  /// Whether this is rank 0, which writes the run folder and logs to the terminal.
  bool is_main() const { return place.rank == 0; }
  /// Whether the launcher restarted the ranks and run.json records an earlier start of this launch. Always
  /// false on ranks other than 0.
  bool is_restart() const;
  std::filesystem::path checkpoint_dir() const;
  /// How often `steps` steps read the data.
  double passes(int64_t steps) const {
    return static_cast<double>(steps) * static_cast<double>(job.batch.rows_per_step) /
           static_cast<double>(data.train->rows_per_epoch());
  }
  /// Null for a single rank.
  World* world() const { return world_; }

  // The parts, in the order in which they are built.
  LoadedConfig loaded;
  Config& config;
  Logger& log;
  RankId place;
  /// Ranks that share the host's memory, and its cores unless training.threads or OMP_NUM_THREADS is set.
  int ranks_on_host = 1;
  ComputeDevice device = cpu_device();
  LaunchInfo launch;
  std::unique_ptr<Communicator> all_ranks;  ///< of the world; null for a single rank
  std::unique_ptr<RunFolder> run_folder;    ///< on rank 0, else null
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> end_tokens;  ///< what ends a sample (text_ends.h), the same on all ranks
  DataSet data;
  Job job;  ///< planned from `config`, with the threads that this rank has
  int64_t total_steps = 0;
  StepProgram train_program;
  StepProgram evaluation_program;
  MemoryAccount predicted_memory;
  MemoryBudget memory_budget;  ///< of this rank, when the step was planned
  std::unique_ptr<ModelStore> store;
  Model model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<LearningRateSchedule> schedule;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Executor> evaluator;
  std::shared_ptr<const GroupCommunicators> groups;  ///< destroyed before the buffers of its collectives
  std::unique_ptr<TrainStep> train_step;
  std::unique_ptr<TeacherTargets> teacher;  ///< null without distillation
  PreferenceData preferences;               ///< of a run on pairs of answers
  std::unique_ptr<SinkQueue> metrics;
  std::unique_ptr<CheckpointRanks> checkpoint_ranks;
  FrozenWeights left_out;                         ///< what checkpoints leave out
  std::unique_ptr<CheckpointWriter> checkpoints;  ///< null if checkpoint.enable is off
  CallbackList callbacks;                         ///< of training.callbacks, then of add_callback

  // The state of the run.
  TrainerState state;
  StepResult last_step;     ///< the previous step's until pre_update of the current one
  double last_flops = 0.0;  ///< of the last step, on this rank
  double last_lr = 0.0;     ///< the learning rate of the default parameter group in the last step
  EvaluationResult last_validation;
  PairResult last_pairs;  ///< the same of pairs of answers
  bool resumed = false;
  SaveOutcome last_save;         ///< the last save that has ended
  int64_t last_saved_step = -1;  ///< the newest checkpoint published by this run, or the one resumed from

 private:
  void step();
  void log_step();
  void handle_nonfinite();
  void handle_unlabelled();
  /// The micro-batches of the next step. Padding if they cannot be read; the step tells the other ranks.
  std::vector<Batch> read_rows();
  /// Saves what is finished and throws: rows of the data cannot be read.
  [[noreturn]] void end_without_rows();
  /// Epochs that have begun before `step`, and that have ended.
  int64_t epochs_begun(int64_t step) const;
  int64_t epochs_ended(int64_t step) const;
  /// What the callbacks store in a checkpoint, of each rank.
  Json callback_states();
  void report_saves();
  void finish_saving();
  /// Makes the collectives of all groups fail with `reason`, so that no rank waits.
  void abort_ranks(const std::string& reason) const;
  /// The same on all ranks.
  bool stop_wanted() const {
    return state.validation_pending || (all_ranks != nullptr ? last_step.interrupted : interrupted());
  }
  /// The end of a validation: saves the step if a callback wants to keep it.
  void save_kept_step();
  bool due(int64_t interval) const { return interval > 0 && state.step % interval == 0; }

  const InterruptWatcher* interrupts_;
  World* world_;
  std::vector<BuildStep> build_steps_;
  int64_t last_validated_step_ = -1;
  bool ended_early_ = false;
  bool keep_this_step_ = false;         ///< until it is saved
  std::exception_ptr data_failure_;     ///< why this rank has no rows for the step
  std::shared_ptr<RankMemory> memory_;  ///< of this rank, with its kernels
  std::optional<c10::Stream> stream_;   ///< of this rank, on a device other than the CPU
};

/// The build steps of a new Trainer, in order.
std::vector<Trainer::BuildStep> standard_build_steps();
/// Makes the learning-rate schedule that begins with state.schedule_begin; a part of the build step "optimizer".
void build_schedule(Trainer& trainer);
/// The build step "teacher": what a run learns from another model.
void build_teacher(Trainer& trainer);
/// The build step "reference": what preference.reference says of the data.
void build_reference(Trainer& trainer);
/// The build step "preferences": what a run on pairs of answers compares with.
void build_preferences(Trainer& trainer);
/// The build step "checkpoint": creates the writer, and resumes the run or loads initial weights.
void build_checkpoint(Trainer& trainer);

}  // namespace stepforge
