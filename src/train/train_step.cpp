#include "train/train_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include <ATen/ops/isfinite.h>

#include "base/format.h"
#include "base/random.h"
#include "kernels/reduce.h"

namespace stepforge {

namespace {

bool finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

/// Collects losses and, if `optimizer` is given, applies the update.
class StepRun : public StepServices {
 public:
  StepRun(const std::vector<Batch>& batches, const ModelStore& store, AdamW* optimizer, double max_norm,
          double lr_factor)
      : batches_(batches), store_(store), optimizer_(optimizer), max_norm_(max_norm), lr_factor_(lr_factor) {
    for (const auto& batch : batches) own_labels_ += batch.valid_labels;
    result.valid_labels = own_labels_;
  }

  const std::function<void()>* on_micro_step_end = nullptr;
  const std::function<void()>* on_pre_update = nullptr;
  StepResult result;

  void count_labels() override {
    std::array<int64_t, 2> sums{result.valid_labels, result.interrupted ? 1 : 0};
    store_.groups().data()->all_reduce(std::as_writable_bytes(std::span(sums)), DType::i64);
    result.valid_labels = sums[0];
    result.interrupted = sums[1] > 0;
  }

  /// A step whose labels are all masked has zero gradients.
  double loss_scale() override {
    return result.valid_labels > 0 ? 1.0 / static_cast<double>(result.valid_labels) : 0.0;
  }

  /// The sums of all micro-batches of the step, in their order, whichever rank had them; and each rank's
  /// mean.
  void reduce_loss() override {
    const DataGroups& groups = store_.groups();
    std::vector<double> own = loss_sums_;
    own.push_back(own_loss());
    std::vector<double> all(own.size() * static_cast<size_t>(groups.data_ranks()));
    groups.data()->all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
    loss_sums_.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is_mean = (i + 1) % own.size() == 0;
      if (is_mean) {
        max_loss_ = std::max(max_loss_, all[i]);
      } else {
        loss_sums_.push_back(all[i]);
      }
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
    const double sum = std::accumulate(loss_sums_.begin(), loss_sums_.end(), 0.0);
    result.loss = result.valid_labels > 0 ? sum / static_cast<double>(result.valid_labels) : 0.0;
    result.max_loss = store_.groups().data() != nullptr ? max_loss_ : result.loss;
    result.grad_norm = stepforge::gradient_norm(store_);
  }

  bool check_finite() override {
    result.updated = optimizer_ != nullptr && std::isfinite(result.loss) && std::isfinite(result.grad_norm);
    if (!result.updated) return false;
    if (on_pre_update != nullptr && *on_pre_update) (*on_pre_update)();
    optimizer_->begin_update(lr_factor_, clip_coefficient(result.grad_norm, max_norm_));
    return true;
  }

  void update(int unit) override { optimizer_->update(unit); }

 private:
  /// Mean over the labels of this rank. Before reduce_loss().
  double own_loss() const {
    const double sum = std::accumulate(loss_sums_.begin(), loss_sums_.end(), 0.0);
    return own_labels_ > 0 ? sum / static_cast<double>(own_labels_) : 0.0;
  }

  const std::vector<Batch>& batches_;
  const ModelStore& store_;
  AdamW* optimizer_;
  double max_norm_;
  double lr_factor_;
  int64_t own_labels_ = 0;
  std::vector<double> loss_sums_;  ///< of each micro-batch
  double max_loss_ = 0.0;
};

}  // namespace

double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

TrainStep::TrainStep(const Config& config, Executor& executor, ModelStore& store, AdamW& optimizer)
    : config_(config), executor_(executor), store_(store), optimizer_(optimizer) {}

StepInputs TrainStep::inputs_for(const StepPlace& place) const {
  const auto& model = config_.model;
  const auto& training = config_.training;
  const auto& debug = config_.debug;
  StepInputs inputs;
  inputs.watch = on_operation;
  inputs.dropout = model.dropout;
  inputs.dropout_key =
      dropout_key_of_step(static_cast<uint64_t>(training.seed), static_cast<uint64_t>(place.step));
  if (debug.plant_nan_step == place.step + 1) {
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

StepResult TrainStep::run(const std::vector<Batch>& micro_batches, const StepPlace& place) {
  StepInputs inputs = inputs_for(place);
  StepRun step(micro_batches, store_, &optimizer_, config_.training.max_norm, place.lr_factor);
  step.on_micro_step_end = &on_micro_step_end;
  step.on_pre_update = &on_pre_update;
  step.result.interrupted = interrupted && interrupted();
  executor_.run(inputs, step);
  if (step.result.updated) {
    optimizer_.end_update();
  } else {
    step.result.culprit = find_culprit(micro_batches, std::move(inputs));
  }
  return step.result;
}

namespace {

/// What the first rank found that found anything: the same on all.
std::string first_found(const DataGroups& groups, const std::string& own) {
  if (groups.data() == nullptr) return own;
  constexpr size_t longest = 200;
  std::string sent = own.substr(0, longest);
  sent.resize(longest);
  std::string all(longest * static_cast<size_t>(groups.data_ranks()), '\0');
  groups.data()->all_gather(std::as_bytes(std::span(sent)), std::as_writable_bytes(std::span(all)));
  for (size_t begin = 0; begin < all.size(); begin += longest) {
    const std::string found = all.substr(begin, longest).c_str();
    if (!found.empty()) return format("{} on data rank {}", found, begin / longest);
  }
  return "";
}

std::string weights_that_are_not_finite(const ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u) {
    const UnitStore& unit = store.unit(u);
    for (size_t i = 0; i < unit.spec().parameters.size(); ++i) {
      const ShardRange range = unit.held(i, i + 1);
      if (!finite(unit.master().narrow(0, range.begin, range.size()))) {
        return format("the weights of {}", unit.spec().parameters[i].name);
      }
    }
  }
  return "";
}

std::string gradient_that_is_not_finite(const ModelStore& store) {
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
  std::string culprit = first_found(groups, weights_that_are_not_finite(store_));
  if (culprit.empty()) culprit = first_found(groups, replay(micro_batches, std::move(inputs)));
  // Summed over the ranks by now: it no longer tells on which it began.
  if (culprit.empty()) culprit = first_found(groups, gradient_that_is_not_finite(store_));
  return culprit.empty() ? "the loss of the head" : culprit;
}

/// The same step again without an update, looking at every bundle as it appears.
std::string TrainStep::replay(const std::vector<Batch>& micro_batches, StepInputs inputs) {
  std::string culprit;
  inputs.inspect = [&culprit, planted = inputs.inspect](const ProgramBlock& block, Bundle& bundle,
                                                        bool is_gradient) {
    if (planted) planted(block, bundle, is_gradient);
    for (const auto& tensor : bundle) {
      if (culprit.empty() && !finite(tensor)) {
        culprit = format("block {} ({})", block.name, is_gradient ? "gradient of its input" : "output");
      }
    }
  };
  StepRun again(micro_batches, store_, nullptr, 0.0, 0.0);
  executor_.run(inputs, again);
  return culprit;
}

}  // namespace stepforge
