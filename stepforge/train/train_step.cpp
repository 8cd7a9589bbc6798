#include "stepforge/train/train_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <ATen/ops/isfinite.h>

#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/comm/gather.h"
#include "stepforge/kernels/reduce.h"
#include "stepforge/train/averaging_domain.h"

namespace stepforge {

namespace {

bool finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

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

/// Collects losses and, if `optimizer` is given, applies the update.
class StepRun : public StepServices {
 public:
  StepRun(const TrainingConfig& training, const std::vector<Batch>& batches, const ModelStore& store,
          AdamW* optimizer, double lr_factor)
      : norm_type_(norm_type(training.norm_type)),
        norm_exchange_(training.reduction == ReductionMode::ordered ? NormExchange::chunks
                                                                    : NormExchange::ranks),
        max_norm_(training.max_norm),
        batches_(batches),
        store_(store),
        optimizer_(optimizer),
        lr_factor_(lr_factor),
        domain_(training.loss_aggregation, labels_of(batches), store.groups().data_ranks()) {
    result.valid_labels = domain_.step_labels();
  }

  const std::function<void()>* on_micro_step_end = nullptr;
  const std::function<void(const StepResult&)>* on_pre_update = nullptr;
  StepResult result;

  void count_labels() override {
    std::array<int64_t, 2> sums{result.valid_labels, result.interrupted ? 1 : 0};
    store_.groups().data()->all_reduce(std::as_writable_bytes(std::span(sums)), DType::i64);
    domain_.set_step_labels(sums[0]);
    result.valid_labels = sums[0];
    result.interrupted = sums[1] > 0;
  }

  double loss_scale() override { return domain_.token_weight(); }

  /// The sums of all micro-batches of the step, in their order, whichever rank had them; and each rank's
  /// mean.
  void reduce_loss() override {
    std::vector<double> own = std::exchange(loss_sums_, {});
    own.push_back(domain_.own_mean(own));
    const std::vector<double> all = gather_values(*store_.groups().data(), own);
    for (size_t begin = 0; begin < all.size(); begin += own.size()) {
      const auto of_rank = std::span(all).subspan(begin, own.size());
      loss_sums_.insert(loss_sums_.end(), of_rank.begin(), of_rank.end() - 1);
      rank_means_.push_back(of_rank.back());
    }
  }

  BatchTensors load_batch(int micro_batch) override {
    return BatchTensors(batches_.at(static_cast<size_t>(micro_batch)));
  }

  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override {
    loss_sums_.push_back(loss.loss_sum);
    if (on_micro_step_end != nullptr && *on_micro_step_end) (*on_micro_step_end)();
  }

  void gradient_norm() override {
    if (rank_means_.empty()) rank_means_.push_back(domain_.own_mean(loss_sums_));  // one rank
    result.loss = domain_.loss(loss_sums_, rank_means_);
    result.max_loss = *std::max_element(rank_means_.begin(), rank_means_.end());
    result.grad_norm = stepforge::gradient_norm(store_, norm_type_, norm_exchange_);
  }

  bool check_finite() override {
    result.updated = optimizer_ != nullptr && std::isfinite(result.loss) && std::isfinite(result.grad_norm);
    if (!result.updated) return false;
    if (on_pre_update != nullptr && *on_pre_update) (*on_pre_update)(result);
    optimizer_->begin_update(lr_factor_, clip_coefficient(result.grad_norm, max_norm_));
    return true;
  }

  void update(int unit) override { optimizer_->update(unit); }

  void reload_optimizer(int unit, const at::Tensor& buffer) override {
    if (optimizer_ != nullptr) optimizer_->reload(unit, buffer);
  }

  void offload_optimizer(int unit) override {
    if (optimizer_ != nullptr) optimizer_->offload(unit);
  }

 private:
  static int64_t labels_of(const std::vector<Batch>& batches) {
    int64_t labels = 0;
    for (const auto& batch : batches) labels += batch.valid_labels;
    return labels;
  }

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
};

}  // namespace

TrainStep::TrainStep(const Config& config, Executor& executor, ModelStore& store, AdamW& optimizer)
    : config_(config), executor_(executor), store_(store), optimizer_(optimizer) {}

StepInputs TrainStep::inputs_for(const StepContext& context) const {
  const auto& model = config_.model;
  const auto& training = config_.training;
  const auto& debug = config_.debug;
  StepInputs inputs;
  inputs.watch = on_operation;
  inputs.dropout = model.dropout;
  inputs.dropout_key =
      dropout_key_of_step(static_cast<uint64_t>(training.seed), static_cast<uint64_t>(context.step));
  if (debug.plant_nan_step == context.step + 1) {
    inputs.inspect = [name = debug.plant_nan_block](const ProgramBlock& block, Bundle& bundle,
                                                    bool is_gradient) {
      // The head returns gradients only; any other block is hit in its forward.
      if (block.name != name || is_gradient != block.last) return;
      constexpr float nan = std::numeric_limits<float>::quiet_NaN();
      if (bundle.at(0).scalar_type() == at::kBFloat16) {
        bundle.at(0).data_ptr<at::BFloat16>()[0] = at::BFloat16(nan);
      } else {
        bundle.at(0).data_ptr<float>()[0] = nan;
      }
    };
  }
  return inputs;
}

StepResult TrainStep::run(const std::vector<Batch>& micro_batches, const StepContext& context) {
  StepInputs inputs = inputs_for(place);
  StepRun step(config_.training, micro_batches, store_, &optimizer_, context.lr_factor);
  step.on_micro_step_end = &on_micro_step_end;
  step.on_pre_update = &on_pre_update;
  step.result.interrupted = interrupted && interrupted();
  executor_.run(inputs, step);
  if (step.result.updated) {
    optimizer_.end_update();
  } else {
    step.result.first_nonfinite = find_culprit(micro_batches, std::move(inputs));
  }
  return step.result;
}

namespace {

/// The finding of the lowest rank that has one: the same on all ranks.
std::string first_found(const DataGroups& groups, const std::string& own) {
  if (groups.data() == nullptr) return own;
  const std::vector<std::string> found = gather_texts(*groups.data(), own);
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (!found[rank].empty()) return format("{} on data rank {}", found[rank], rank);
  }
  return "";
}

std::string nonfinite_weights(const ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u) {
    const UnitStore& unit = store.unit(u);
    for (size_t i = 0; i < unit.spec().parameters.size(); ++i) {
      const ShardRange range = unit.local_range(i, i + 1);
      if (!finite(unit.master().narrow(0, range.begin, range.size()))) {
        return format("the weights of {}", unit.spec().parameters[i].name);
      }
    }
  }
  return "";
}

std::string nonfinite_gradient(const ModelStore& store) {
  for (size_t unit = 0; unit < store.size(); ++unit) {
    if (store.unit(unit).trained() && !all_finite(store.unit(unit).gradient())) {
      return format("block {} (gradient of its weights)", store.unit(unit).spec().name);
    }
  }
  return "";
}

}  // namespace

std::string TrainStep::find_culprit(const std::vector<Batch>& micro_batches, StepInputs inputs) {
  const DataGroups& groups = store_.groups();
  std::string first_nonfinite = first_found(groups, nonfinite_weights(store_));
  if (first_nonfinite.empty())
    first_nonfinite = first_found(groups, replay(micro_batches, std::move(inputs)));
  // The gradient has been summed over the ranks: where it began is no longer known.
  if (first_nonfinite.empty()) first_nonfinite = first_found(groups, nonfinite_gradient(store_));
  return first_nonfinite.empty() ? "the loss of the head" : first_nonfinite;
}

/// The same step again without an update; checks every bundle.
std::string TrainStep::replay(const std::vector<Batch>& micro_batches, StepInputs inputs) {
  std::string first_nonfinite;
  inputs.inspect = [&first_nonfinite, planted = inputs.inspect](const ProgramBlock& block, Bundle& bundle,
                                                                bool is_gradient) {
    if (planted) planted(block, bundle, is_gradient);
    for (const auto& tensor : bundle) {
      if (first_nonfinite.empty() && !finite(tensor)) {
        first_nonfinite =
            format("block {} ({})", block.name, is_gradient ? "gradient of its input" : "output");
      }
    }
  };
  StepRun again(config_.training, micro_batches, store_, nullptr, 0.0);
  executor_.run(inputs, again);
  return first_nonfinite;
}

}  // namespace stepforge
