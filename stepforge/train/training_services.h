// SPDX-License-Identifier: Apache-2.0
// The StepServices of a training step: micro-batches, sums of losses, gradient norm and update.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/data/batch.h"
#include "stepforge/optim/adamw.h"
#include "stepforge/storage/gradient_norm.h"
#include "stepforge/train/averaging_domain.h"
#include "stepforge/train/executor.h"
#include "stepforge/train/train_step.h"

namespace stepforge {

/// The norm of kernels/reduce.h that the configuration names.
NormType norm_type(ClipNorm norm);

/// The services of one step on one rank. Collects losses and, if `optimizer` is not null, updates the
/// weights, unless the loss or the norm is not finite.
class TrainingServices : public StepServices {
 public:
  TrainingServices(const TrainingConfig& training, const std::vector<Batch>& batches, const ModelStore& store,
                   AdamW* optimizer, double lr_factor);

  std::function<void()> on_micro_step_end;
  std::function<void(const StepResult& so_far)> on_pre_update;
  StepResult result;

  void count_labels(Communicator& ranks) override;
  double loss_scale() override;
  BatchTensors load_batch(int micro_batch) override;
  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override;
  void reduce_loss(Communicator& ranks) override;
  void gradient_norm(Communicator* shards) override;
  void join_norm(Communicator& parts) override;
  bool check_finite() override;
  void update(int unit) override { optimizer_->update(unit); }
  void reload_optimizer(int unit, const at::Tensor& buffer) override;
  void offload_optimizer(int unit) override;

 private:
  NormType norm_type_;
  NormExchange norm_exchange_;
  double max_norm_;
  const std::vector<Batch>& batches_;
  const ModelStore& store_;
  AdamW* optimizer_;
  double lr_factor_;
  AveragingDomain domain_;
  std::vector<double> loss_sums_;   ///< of each micro-batch
  std::vector<double> rank_means_;  ///< of each rank
  double norm_terms_ = 0.0;
};

}  // namespace stepforge
