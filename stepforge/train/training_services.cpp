// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/training_services.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "stepforge/comm/gather.h"

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

int64_t labels_of(const std::vector<Batch>& batches) {
  int64_t labels = 0;
  for (const auto& batch : batches) labels += batch.valid_labels;
  return labels;
}

}  // namespace

TrainingServices::TrainingServices(const TrainingConfig& training, const std::vector<Batch>& batches,
                                   const ModelStore& store, AdamW* optimizer, double lr_factor)
    : norm_type_(norm_type(training.norm_type)),
      norm_exchange_(training.reduction == ReductionMode::ordered ? NormExchange::chunks
                                                                  : NormExchange::ranks),
      max_norm_(training.max_norm),
      batches_(batches),
      store_(store),
      optimizer_(optimizer),
      lr_factor_(lr_factor),
      domain_(training.loss_aggregation, labels_of(batches), store.groups().layout().data_ranks) {
  result.valid_labels = domain_.step_labels();
}

void TrainingServices::count_labels(Communicator& ranks) {
  // Ranks of tensor parallelism read the same rows: one of them counts.
  const RankLayout& layout = store_.groups().layout();
  const bool counts = layout.index_in(layout.tensor_group) == 0;
  std::array<int64_t, 2> sums{counts ? result.valid_labels : 0, result.interrupted ? 1 : 0};
  ranks.all_reduce(std::as_writable_bytes(std::span(sums)), DType::i64);
  domain_.set_step_labels(sums[0]);
  result.valid_labels = sums[0];
  result.interrupted = sums[1] > 0;
}

double TrainingServices::loss_scale() {
  return domain_.token_weight();
}

BatchTensors TrainingServices::load_batch(int micro_batch) {
  return BatchTensors(batches_.at(static_cast<size_t>(micro_batch)));
}

void TrainingServices::loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) {
  loss_sums_.push_back(loss.loss_sum);
  if (on_micro_step_end) on_micro_step_end();
}

/// Gathers the loss sums of all micro-batches of the step, in order, and the mean of each rank.
void TrainingServices::reduce_loss(Communicator& ranks) {
  std::vector<double> own = std::exchange(loss_sums_, {});
  own.push_back(domain_.own_mean(own));
  const std::vector<double> all = gather_values(ranks, own);
  for (size_t begin = 0; begin < all.size(); begin += own.size()) {
    const auto of_rank = std::span(all).subspan(begin, own.size());
    loss_sums_.insert(loss_sums_.end(), of_rank.begin(), of_rank.end() - 1);
    rank_means_.push_back(of_rank.back());
  }
}

void TrainingServices::gradient_norm(Communicator* shards) {
  if (rank_means_.empty()) rank_means_.push_back(domain_.own_mean(loss_sums_));  // one rank
  result.loss = domain_.loss(loss_sums_, rank_means_);
  result.max_loss = *std::max_element(rank_means_.begin(), rank_means_.end());
  norm_terms_ = gradient_norm_terms(store_, norm_type_, norm_exchange_, shards);
  result.grad_norm = norm_of_terms(norm_type_, norm_terms_);
}

void TrainingServices::join_norm(Communicator& parts) {
  result.grad_norm = norm_of_terms(norm_type_, join_over_shards(&parts, norm_type_, norm_terms_));
}

bool TrainingServices::check_finite() {
  result.updated = optimizer_ != nullptr && std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (!result.updated) return false;
  if (on_pre_update) on_pre_update(result);
  optimizer_->begin_update(lr_factor_, clip_coefficient(result.grad_norm, max_norm_));
  return true;
}

void TrainingServices::reload_optimizer(int unit, const at::Tensor& buffer) {
  if (optimizer_ != nullptr) optimizer_->reload(unit, buffer);
}

void TrainingServices::offload_optimizer(int unit) {
  if (optimizer_ != nullptr) optimizer_->offload(unit);
}

}  // namespace stepforge
