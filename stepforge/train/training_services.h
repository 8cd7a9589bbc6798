// SPDX-License-Identifier: Apache-2.0
// The StepServices of a training step: micro-batches, sums of losses, gradient norm and update. They hand the
// step's scalars from operation to operation; the host reads none of them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/data/batch.h"
#include "stepforge/optim/optimizer.h"
#include "stepforge/storage/gradient_norm.h"
#include "stepforge/train/averaging_domain.h"
#include "stepforge/train/executor.h"
#include "stepforge/train/preference_data.h"
#include "stepforge/train/router_balance.h"
#include "stepforge/train/step_scalars.h"
#include "stepforge/train/teacher_targets.h"

namespace stepforge {

/// The norm of kernels/reduce.h that the configuration names.
NormType norm_type(ClipNorm norm);

/// The services of one step on one rank. Collects losses and, if `optimizer` is not null, updates the
/// weights; the update changes nothing if the loss or the norm is not finite, no token has a label, or a rank has no rows.
class TrainingServices : public StepServices {
 public:
  /// Begins a step on `scalars`; set their learning-rate factor and interruption afterwards.
  TrainingServices(const TrainingConfig& training, const std::vector<Batch>& batches, const ModelStore& store,
                   Optimizer* optimizer, const StepScalars& scalars);

  /// The cross-entropy of each token of a micro-batch, on the compute device.
  std::function<void(const Batch& batch, const at::Tensor& token_loss)> on_losses;
  /// The same at a depth of multi-token prediction, whose labels `batch` has.
  std::function<void(int ahead, const BatchTensors& batch, const at::Tensor& token_loss)> on_ahead_losses;
  /// What the router of a layer reports about a micro-batch. Null if nobody needs it and routers have no losses.
  std::function<void(const RouterReport& report)> on_router_report;
  std::function<void()> on_micro_step_end;
  std::function<void()> on_pre_update;
  /// What each micro-batch of pairs reports.
  std::function<void(const PairReport& report)> on_pairs;
  const TeacherTargets* teacher = nullptr;  ///< null unless the step learns from one
  double teacher_weight = 0.0;              ///< SoftTargets::weight
  double teacher_temperature = 1.0;         ///< SoftTargets::temperature
  /// The divergence of each token of a micro-batch from the teacher, on the compute device.
  std::function<void(const Batch& batch, const at::Tensor& divergence)> on_divergence;
  const PreferenceData* preferences = nullptr;  ///< null unless the step trains on pairs of answers
  double baseline = 0.0;                        ///< of these, PairScores::baseline
  RouterBalance* balance = nullptr;             ///< null unless the corrections of routers change
  TensorParallel tensor = {};                   ///< whose slices of the tokens routers get

  void count_labels(Communicator& ranks) override;
  at::Tensor loss_scale(int ahead) override {
    return ahead == 0 ? scalars_.token_weight
                      : scalars_.ahead.at(static_cast<size_t>(ahead) - 1).token_weight;
  }
  BatchTensors load_batch(int micro_batch, int ahead) override;
  std::optional<PreferenceStep> preference_step(int micro_batch, const BatchTensors& batch) override;
  std::optional<DistillationStep> distillation_step(int micro_batch, const BatchTensors& batch) override;
  std::optional<RouterStep> router_step(const BatchTensors& batch, int ahead) override;
  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override;
  void extra_loss_ready(int micro_batch, double weight, const BatchTensors& batch,
                        const LossResult& loss) override;
  void ahead_loss_ready(int ahead, const BatchTensors& batch, const LossResult& loss) override;
  void share_loss(Communicator& stages) override;
  void reduce_loss(Communicator& ranks) override;
  void gradient_norm(Communicator* shards) override;
  void join_norm(Communicator& parts) override;
  void join_stage_norms(Communicator& stages) override;
  void check_finite() override;
  void update(int unit) override;
  void update_state(int unit, Communicator* ranks) override;
  void reload_optimizer(int unit, const at::Tensor& buffer) override;
  void offload_optimizer(int unit) override;

 private:
  /// What a label and a pair weigh, by the counts of the step.
  void weigh_counts() const;
  /// Each stage knows the norms of its units only.
  bool in_pipeline() const { return scalars_.unit_norm_terms.numel() > 0; }

  NormType norm_type_;
  NormExchange norm_exchange_;
  double max_norm_;
  const std::vector<Batch>& batches_;
  const ModelStore& store_;
  Optimizer* optimizer_;
  bool has_pairs_;  ///< of answers, on this rank
  AveragingDomain domain_;
  const StepScalars& scalars_;
};

}  // namespace stepforge
