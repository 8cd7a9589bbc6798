// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/training_services.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "stepforge/kernels/scalars.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

NormType norm_type(ClipNorm norm) {
  switch (norm) {
    case ClipNorm::l1:
      return NormType::l1;
    case ClipNorm::l2:
      return NormType::l2;
    case ClipNorm::l3:
      return NormType::l3;
    case ClipNorm::inf:
      return NormType::inf;
  }
  return {};
}

namespace {

const Batch& at_depth(const Batch& batch, size_t ahead) {
  return ahead == 0 ? batch : batch.ahead.at(ahead - 1);
}

/// The total weight of the labels of all batches at a depth.
double weight_of(const std::vector<Batch>& batches, size_t ahead) {
  double weight = 0.0;
  for (const Batch& batch : batches) weight += at_depth(batch, ahead).loss_weight();
  return weight;
}

/// Of the first of the ranks that have parts of the same rows, those of whole rows.
int64_t better_labels_of(const std::vector<Batch>& batches) {
  int64_t labels = 0;
  for (const Batch& batch : batches)
    for (const AnswerPair& pair : batch.pairs) labels += batch.part.index == 0 ? pair.answers[0].labels : 0;
  return labels;
}

}  // namespace

TrainingServices::TrainingServices(const TrainingConfig& training, const std::vector<Batch>& batches,
                                   const ModelStore& store, Optimizer* optimizer, const StepScalars& scalars)
    : norm_type_(norm_type(training.norm_type)),
      norm_exchange_(training.reduction == ReductionMode::ordered ? NormExchange::chunks
                                                                  : NormExchange::ranks),
      max_norm_(training.max_norm),
      batches_(batches),
      store_(store),
      optimizer_(optimizer),
      has_pairs_(std::ranges::any_of(batches, [](const Batch& batch) { return !batch.pairs.empty(); })),
      domain_(training.loss_aggregation),
      scalars_(scalars) {
  int64_t labels = 0;
  int64_t tokens = 0;
  for (const Batch& batch : batches) {
    labels += batch.valid_labels;
    tokens += batch.real_tokens;
  }
  std::vector<double> ahead_weights;
  for (size_t depth = 1; depth <= scalars.ahead.size(); ++depth)
    ahead_weights.push_back(weight_of(batches, depth));
  scalars_.begin(weight_of(batches, 0), labels, tokens, store.groups().layout().data_ranks, ahead_weights,
                 better_labels_of(batches));
  weigh_counts();
}

void TrainingServices::weigh_counts() const {
  domain_.weigh_tokens(scalars_);
  if (!has_pairs_) return;
  reciprocal_or_zero(scalars_.better_labels, scalars_.sft_scale);
  scalars_.sft_scale.mul_(scalars_.label_weight);
  reciprocal_or_zero(scalars_.valid_labels, scalars_.label_mean);
}

void TrainingServices::count_labels(Communicator& ranks) {
  scalars_.sum_counts(ranks, store_.groups().layout());
  weigh_counts();
}

BatchTensors TrainingServices::load_batch(int micro_batch, int ahead) {
  Batch batch = at_depth(batches_.at(static_cast<size_t>(micro_batch)), static_cast<size_t>(ahead));
  batch.mismatched.clear();
  // The rest of them is loaded for the blocks of their depth.
  for (Batch& later : batch.ahead) {
    Batch tokens;
    tokens.tokens = std::move(later.tokens);
    later = std::move(tokens);
  }
  return BatchTensors(std::move(batch), store_.device());
}

std::optional<RouterStep> TrainingServices::router_step(const BatchTensors& batch, int ahead) {
  if (!on_router_report && balance == nullptr) return std::nullopt;
  const auto add = [this](const RouterReport& report) {
    if (on_router_report) on_router_report(report);
    if (balance != nullptr) balance->add(report);
  };
  // The losses of routers are means over tokens, also of pairs.
  const at::Tensor scale = preferences != nullptr ? scalars_.label_mean : loss_scale(ahead);
  return RouterStep(scale, batch, add, tensor);
}

std::optional<PreferenceStep> TrainingServices::preference_step(int micro_batch, const BatchTensors& batch) {
  if (preferences == nullptr) return std::nullopt;
  const auto add = [this, micro_batch](const PairReport& report) {
    scalars_.loss_sums.select(0, micro_batch).copy_(report.loss);
    if (on_pairs) on_pairs(report);
  };
  return PreferenceStep(preferences->loss, batch.host, store_.device(), preferences->training.of(batch.host),
                        scalars_.sft_scale, add, baseline);
}

std::optional<DistillationStep> TrainingServices::distillation_step(int, const BatchTensors& batch) {
  if (teacher == nullptr) return std::nullopt;
  const auto read = [this, &batch] {
    SoftTargets targets = teacher->of(batch.host);
    targets.ids = targets.ids.to(store_.device());
    targets.log_probs = targets.log_probs.to(store_.device());
    targets.divergence = at::empty({batch.token_count()}, targets.log_probs.options());
    targets.weight = teacher_weight;
    targets.temperature = teacher_temperature;
    return targets;
  };
  return DistillationStep(read, [this, &batch](const at::Tensor& divergence) {
    if (on_divergence) on_divergence(batch.host, divergence);
  });
}

void TrainingServices::loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) {
  const at::Tensor& losses = loss.token_loss;
  if (preferences == nullptr) sum_losses(batch, losses, scalars_.loss_sums.select(0, micro_batch));
  if (on_losses) on_losses(batches_.at(static_cast<size_t>(micro_batch)), losses);
  if (on_micro_step_end) on_micro_step_end();
}

void TrainingServices::extra_loss_ready(int micro_batch, double weight, const BatchTensors& batch,
                                        const LossResult& loss) {
  const at::Tensor all = scalars_.loss_sums.select(0, micro_batch);
  const at::Tensor own = at::empty_like(all);
  sum_losses(batch, loss.token_loss, own);
  all.add_(own, weight);
}

void TrainingServices::ahead_loss_ready(int ahead, const BatchTensors& batch, const LossResult& loss) {
  if (on_ahead_losses) on_ahead_losses(ahead, batch, loss.token_loss);
}

void TrainingServices::share_loss(Communicator& stages) {
  scalars_.share_losses(stages);
}

/// Gathers the loss sums of all micro-batches of the step, in order, and the mean of each rank.
void TrainingServices::reduce_loss(Communicator& ranks) {
  domain_.average_own(scalars_);
  scalars_.gather_losses(ranks);
}

void TrainingServices::gradient_norm(Communicator* shards) {
  if (scalars_.gathered_losses.size(0) == 1) domain_.average_own(scalars_);  // one rank reduces no loss
  domain_.average_all(scalars_);
  if (in_pipeline())
    return unit_norm_terms(store_, norm_type_, norm_exchange_, shards, scalars_.unit_norm_terms);
  gradient_norm_terms(store_, norm_type_, norm_exchange_, shards, scalars_.norm_terms);
  norm_of_terms(norm_type_, scalars_.norm_terms, scalars_.norm);
}

void TrainingServices::join_stage_norms(Communicator& stages) {
  join_unit_terms(stages, norm_type_, scalars_.unit_norm_terms);
  join_units(norm_type_, scalars_.unit_norm_terms, scalars_.norm_terms);
  norm_of_terms(norm_type_, scalars_.norm_terms, scalars_.norm);
}

void TrainingServices::join_norm(Communicator& parts) {
  if (in_pipeline()) return join_unit_terms(parts, norm_type_, scalars_.unit_norm_terms);
  join_over_shards(&parts, norm_type_, scalars_.norm_terms);
  norm_of_terms(norm_type_, scalars_.norm_terms, scalars_.norm);
}

void TrainingServices::check_finite() {
  if (optimizer_ == nullptr) return;
  flag_if_finite(scalars_.loss, scalars_.norm, scalars_.update.finite);
  // Nothing is learned from a step without labels: the decay of weights and moments would be all that is left of it.
  scalars_.update.finite.mul_(scalars_.valid_labels.gt(0)).mul_(scalars_.without_rows.eq(0));
  clip_coefficient(scalars_.norm, max_norm_, scalars_.update.grad_scale);
  if (on_pre_update) on_pre_update();
  optimizer_->begin_update(scalars_.update);
}

void TrainingServices::update(int unit) {
  if (optimizer_ != nullptr) optimizer_->update(unit, scalars_.update);
}

void TrainingServices::update_state(int unit, Communicator* ranks) {
  if (balance != nullptr) balance->update(unit, ranks, scalars_.update.finite);
}

void TrainingServices::reload_optimizer(int unit, const at::Tensor& buffer) {
  if (optimizer_ != nullptr) optimizer_->reload(unit, buffer);
}

void TrainingServices::offload_optimizer(int unit) {
  if (optimizer_ != nullptr) optimizer_->offload(unit);
}

}  // namespace stepforge
