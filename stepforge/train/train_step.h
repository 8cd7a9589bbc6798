// SPDX-License-Identifier: Apache-2.0
// One optimizer step: computes loss and gradient norm, and updates the weights if both are finite. The host
// sees its numbers after the list of its operations has run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/data/batch.h"
#include "stepforge/optim/optimizer.h"
#include "stepforge/storage/gradient_norm.h"
#include "stepforge/train/executor.h"
#include "stepforge/train/preference_data.h"
#include "stepforge/train/router_balance.h"
#include "stepforge/train/step_scalars.h"
#include "stepforge/train/teacher_targets.h"

namespace stepforge {

class TrainingServices;

struct StepResult {
  double loss = 0.0;          ///< the mean that training.loss_aggregation names, natural log
  double max_loss = 0.0;      ///< the largest mean of one rank over its own valid labels
  double grad_norm = 0.0;     ///< before clipping
  int64_t valid_labels = 0;   ///< of all ranks; without any, nothing is updated
  int64_t tokens = 0;         ///< of all ranks, without padding
  bool without_rows = false;  ///< some rank had no rows, so nothing was updated
  bool updated = false;
  bool interrupted = false;     ///< some rank was asked to stop; all ranks see it after the same step
  std::string first_nonfinite;  ///< where the first non-finite value was, if there is one
};

/// What a step depends on besides its rows and the weights.
struct StepContext {
  int64_t step = 0;  ///< zero-based
  double lr_factor = 1.0;
};

/// A value that is not finite, as one rank found it.
struct NonfiniteFinding {
  /// Inspections before it, equal at the same place of all ranks; in a pipeline, first by stage.
  int64_t order = 0;
  std::string place;  ///< "" if there is none
};

class TrainStep {
 public:
  TrainStep(const Config& config, Executor& executor, ModelStore& store, Optimizer& optimizer);

  /// Called with the losses of each micro-batch, once per step.
  std::function<void(const Batch& batch, const at::Tensor& token_loss)> on_losses;
  /// Called with the losses of each micro-batch at each depth of multi-token prediction, once per step.
  std::function<void(int ahead, const BatchTensors& batch, const at::Tensor& token_loss)> on_ahead_losses;
  /// Called with what each router reports about a micro-batch, once per step. Null if nobody needs it.
  std::function<void(const RouterReport& report)> on_router_report;
  /// Called with what each micro-batch of pairs of answers reports, once per step.
  std::function<void(const PairReport& report)> on_pairs;
  /// Called with the divergence from the teacher of each token of a micro-batch, once per step.
  std::function<void(const Batch& batch, const at::Tensor& divergence)> on_divergence;
  const TeacherTargets* teacher = nullptr;      ///< null unless the steps learn from a teacher
  const PreferenceData* preferences = nullptr;  ///< null unless the steps train on pairs
  /// The baseline of judged answers in a step, by the micro-batches of this rank; null if the loss has none.
  std::function<double(const std::vector<Batch>& micro_batches)> baseline;
  /// See the events of the same names in Callback.
  std::function<void()> on_micro_step_end;
  /// Null if nobody needs the numbers before the update: the host then reads them only after the step.
  std::function<void(const StepResult& so_far)> on_pre_update;
  /// See StepInputs::watch.
  std::function<void(const Operation& operation, bool ended)> on_operation;
  /// Whether this rank was asked to stop.
  std::function<bool()> interrupted;

  /// Whether the micro-batches of this rank are Loader::blank().
  bool lacks_rows = false;

  /// Runs the program on this rank's `micro_batches`. The result is the same on all ranks. Never updates from
  /// a loss or norm that is not finite, nor without labels: weights and moments then keep their bits, and in the first
  /// case `first_nonfinite` is set.
  StepResult run(const std::vector<Batch>& micro_batches, const StepContext& context);

 private:
  StepInputs inputs_for(const StepContext& context) const;
  /// What the loss needs besides the labels.
  void set_targets(TrainingServices& services) const;
  /// Routers report to the step, those with losses even if `report` is null.
  void set_routers(TrainingServices& services, std::function<void(const RouterReport&)> report) const;
  /// The host's only look at the scalars of a step.
  StepResult read_result() const;
  std::string find_first_nonfinite(const std::vector<Batch>& micro_batches, StepInputs inputs);
  NonfiniteFinding replay(const std::vector<Batch>& micro_batches, StepInputs inputs);

  const Config& config_;
  Executor& executor_;
  ModelStore& store_;
  Optimizer& optimizer_;
  double baseline_ = 0.0;  ///< of the step
  StepScalars scalars_;
  RouterBalance balance_;
};

}  // namespace stepforge
