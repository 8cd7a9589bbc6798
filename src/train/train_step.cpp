#include "train/train_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
    for (const auto& batch : batches) result.valid_labels += batch.valid_labels;
  }

  const std::function<void()>* on_micro_step_end = nullptr;
  const std::function<void()>* on_pre_update = nullptr;
  StepResult result;

  BatchTensors load_batch(int micro_batch) override {
    return BatchTensors(batches_.at(static_cast<size_t>(micro_batch)));
  }

  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override {
    loss_sum_ += loss.loss_sum;
    if (on_micro_step_end != nullptr && *on_micro_step_end) (*on_micro_step_end)();
  }

  void gradient_norm() override {
    result.loss = result.valid_labels > 0 ? loss_sum_ / static_cast<double>(result.valid_labels) : 0.0;
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
  const std::vector<Batch>& batches_;
  const ModelStore& store_;
  AdamW* optimizer_;
  double max_norm_;
  double lr_factor_;
  double loss_sum_ = 0.0;
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
  // A step whose labels are all masked has zero gradients.
  inputs.loss_scale =
      step.result.valid_labels > 0 ? 1.0 / static_cast<double>(step.result.valid_labels) : 0.0;
  executor_.run(inputs, step);
  if (step.result.updated) {
    optimizer_.end_update();
  } else {
    step.result.culprit = find_culprit(micro_batches, std::move(inputs));
  }
  return step.result;
}

std::string TrainStep::find_culprit(const std::vector<Batch>& micro_batches, StepInputs inputs) {
  for (size_t unit = 0; unit < store_.size(); ++unit) {
    for (size_t i = 0; i < store_.unit(unit).parameters().size(); ++i) {
      if (!finite(store_.unit(unit).master_view(i))) {
        return format("the weights of {}", store_.unit(unit).spec().parameters[i].name);
      }
    }
  }
  // The same step again without an update, looking at every bundle as it appears.
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
  StepRun replay(micro_batches, store_, nullptr, 0.0, 0.0);
  executor_.run(inputs, replay);
  if (!culprit.empty()) return culprit;
  for (size_t unit = 0; unit < store_.size(); ++unit) {
    if (store_.unit(unit).trained() && !all_finite(store_.unit(unit).gradient())) {
      return format("block {} (gradient of its weights)", store_.unit(unit).spec().name);
    }
  }
  return "the loss of the head";
}

}  // namespace stepforge
