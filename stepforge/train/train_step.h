// One optimizer step: data in, loss and norm out, weights updated if they are finite.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/data/batch.h"
#include "stepforge/optim/adamw.h"
#include "stepforge/storage/gradient_norm.h"
#include "stepforge/train/executor.h"

namespace stepforge {

struct StepResult {
  double loss = 0.0;       ///< the mean that training.loss_aggregation names, natural log
  double max_loss = 0.0;   ///< the largest of the ranks' means over their own valid labels
  double grad_norm = 0.0;  ///< before clipping
  int64_t valid_labels = 0;
  bool updated = false;
  bool interrupted = false;     ///< some rank was asked to stop: all of them see it after the same step
  std::string first_nonfinite;  ///< if not finite: the first block with a value that is not, and which kind
};

/// What a step needs to know of its place in the run.
struct StepContext {
  int64_t step = 0;  ///< zero-based
  double lr_factor = 1.0;
};

class TrainStep {
 public:
  TrainStep(const Config& config, Executor& executor, ModelStore& store, AdamW& optimizer);

  /// Called between two points of the step; see Callback.
  std::function<void()> on_micro_step_end;
  std::function<void()> on_pre_update;
  /// See StepInputs::watch.
  std::function<void(const Operation& operation, bool ended)> on_operation;
  /// Whether this rank was asked to stop.
  std::function<bool()> interrupted;

  /// Runs the program on this rank's `micro_batches`. The result is the same on all ranks. Never updates from
  /// a loss or norm that is not finite: weights and moments then keep their bits and `first_nonfinite` tells where it
  /// began.
  StepResult run(const std::vector<Batch>& micro_batches, const StepContext& place);

 private:
  StepInputs inputs_for(const StepContext& place) const;
  std::string find_culprit(const std::vector<Batch>& micro_batches, StepInputs inputs);
  std::string replay(const std::vector<Batch>& micro_batches, StepInputs inputs);

  const Config& config_;
  Executor& executor_;
  ModelStore& store_;
  AdamW& optimizer_;
};

}  // namespace stepforge
