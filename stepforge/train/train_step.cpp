// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/train_step.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ops/isfinite.h>

#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/catalog/families.h"
#include "stepforge/comm/gather.h"
#include "stepforge/kernels/reduce.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/train/training_services.h"

namespace stepforge {

namespace {

bool finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

}  // namespace

TrainStep::TrainStep(const Config& config, Executor& executor, ModelStore& store, Optimizer& optimizer)
    : config_(config),
      executor_(executor),
      store_(store),
      optimizer_(optimizer),
      scalars_(step_scalars(executor.program(), store)),
      balance_(store, config.model.router_bias_update_speed) {}

StepInputs TrainStep::inputs_for(const StepContext& context) const {
  const auto& model = config_.model;
  const auto& training = config_.training;
  const auto& debug = config_.debug;
  StepInputs inputs;
  inputs.name = format("step {}", context.step + 1);
  inputs.watch = on_operation;
  inputs.dropout = model.dropout;
  inputs.adapter_dropout = config_.adapter.dropout;
  inputs.dropout_key =
      dropout_key_of_step(static_cast<uint64_t>(training.seed), static_cast<uint64_t>(context.step));
  if (debug.plant_nan_step == context.step + 1) {
    inputs.inspect = [name = debug.plant_nan_block](const ProgramBlock& block, Bundle& bundle,
                                                    bool is_gradient) {
      // The head has no outputs, only gradients; in any other block the value is planted in forward.
      if (block.name != name || is_gradient != block.last()) return;
      constexpr float nan = std::numeric_limits<float>::quiet_NaN();
      bundle.at(0).view({-1}).narrow(0, 0, 1).fill_(nan);
    };
  }
  return inputs;
}

void TrainStep::set_routers(TrainingServices& services,
                            std::function<void(const RouterReport&)> report) const {
  if (!report && has_router_losses(config_.model)) report = [](const RouterReport&) {};
  services.on_router_report = std::move(report);
  services.tensor = plan_tensor(config_, store_.groups().layout().id);
}

void TrainStep::set_targets(TrainingServices& services) const {
  services.preferences = preferences;
  services.baseline = baseline_;
  services.teacher = teacher;
  services.teacher_weight = config_.distillation.weight;
  services.teacher_temperature = config_.distillation.temperature;
}

StepResult TrainStep::run(const std::vector<Batch>& micro_batches, const StepContext& context) {
  StepInputs inputs = inputs_for(context);
  if (baseline) baseline_ = baseline(micro_batches);
  TrainingServices services(config_.training, micro_batches, store_, &optimizer_, scalars_);
  scalars_.update.lr_factor.fill_(context.lr_factor);
  scalars_.interrupted.fill_(interrupted && interrupted());
  scalars_.without_rows.fill_(lacks_rows);
  services.on_losses = on_losses;
  services.on_ahead_losses = on_ahead_losses;
  set_targets(services);
  services.on_divergence = on_divergence;
  services.on_pairs = on_pairs;
  set_routers(services, on_router_report);
  balance_.begin();
  if (balance_.changes()) services.balance = &balance_;
  services.on_micro_step_end = on_micro_step_end;
  if (on_pre_update) {
    services.on_pre_update = [this] {
      if (const StepResult so_far = read_result(); so_far.updated) on_pre_update(so_far);
    };
  }
  executor_.run(inputs, services);
  optimizer_.end_update(scalars_.update);
  StepResult result = read_result();
  store_.groups().rethrow_failure();
  const bool is_nonfinite = !result.updated && result.valid_labels > 0 && !result.without_rows;
  if (is_nonfinite) result.first_nonfinite = find_first_nonfinite(micro_batches, std::move(inputs));
  return result;
}

StepResult TrainStep::read_result() const {
  const HostScalars host(scalars_);
  return {.loss = host(scalars_.loss),
          .max_loss = host(scalars_.max_loss),
          .grad_norm = host(scalars_.norm),
          .valid_labels = static_cast<int64_t>(host(scalars_.valid_labels)),
          .tokens = static_cast<int64_t>(host(scalars_.tokens)),
          .without_rows = host(scalars_.without_rows) != 0.0,
          .updated = host(scalars_.update.finite) != 0.0,
          .interrupted = host(scalars_.interrupted) != 0.0,
          .first_nonfinite = {}};
}

namespace {

/// The earliest finding, with its rank; of several the lowest rank's. "" if there is none. The same on all
/// ranks.
std::string first_found(Communicator* ranks, const NonfiniteFinding& own) {
  if (ranks == nullptr) return own.place;
  const std::vector<std::string> texts = gather_texts(*ranks, own.place);
  const std::vector<int64_t> orders = gather_values(*ranks, std::array{own.order});
  std::optional<size_t> first;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty() && (!first || orders[rank] < orders[*first])) first = rank;
  return first ? format("{} on rank {}", texts[*first], *first) : "";
}

std::string nonfinite_weights(const ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u) {
    const UnitStore& unit = store.unit(u);
    const at::Tensor values = unit.master_values();
    for (size_t i = 0; i < unit.spec().parameters.size(); ++i) {
      const ShardRange range = unit.local_range(i, i + 1);
      if (!finite(values.narrow(0, range.begin, range.size()))) {
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

/// An order in which a stage comes before the next one in forward, and before the previous one in backward.
int64_t stage_order(int stage, bool is_gradient) {
  constexpr int64_t kStages = int64_t{1} << 20;
  constexpr int64_t kInspections = int64_t{1} << 32;
  return kInspections * (is_gradient ? 2 * kStages - stage : stage);
}

}  // namespace

std::string TrainStep::find_first_nonfinite(const std::vector<Batch>& micro_batches, StepInputs inputs) {
  const GroupCommunicators& groups = store_.groups();
  Communicator* const ranks = groups.at(groups.layout().world_group, Lane::compute);
  std::string first_nonfinite = first_found(ranks, {0, nonfinite_weights(store_)});
  if (first_nonfinite.empty()) first_nonfinite = first_found(ranks, replay(micro_batches, std::move(inputs)));
  // Gradients are already summed over ranks here, so the named rank may not be the one where it began.
  if (first_nonfinite.empty()) first_nonfinite = first_found(ranks, {0, nonfinite_gradient(store_)});
  return first_nonfinite.empty() ? "the loss of the head" : first_nonfinite;
}

/// Runs the step again without an update and checks every bundle.
NonfiniteFinding TrainStep::replay(const std::vector<Batch>& micro_batches, StepInputs inputs) {
  NonfiniteFinding first;
  int64_t inspections = 0;
  const bool in_pipeline = store_.groups().layout().pipeline_group >= 0;
  inputs.inspect = [&first, &inspections, in_pipeline, planted = inputs.inspect](
                       const ProgramBlock& block, Bundle& bundle, bool is_gradient) {
    if (planted) planted(block, bundle, is_gradient);
    ++inspections;
    for (const auto& tensor : bundle) {
      const bool is_number = tensor.defined() && tensor.is_floating_point();  // not the choice of experts
      if (!first.place.empty() || !is_number || finite(tensor)) continue;
      first = {inspections + (in_pipeline ? stage_order(block.stage, is_gradient) : 0),
               format("block {} ({})", block.name, is_gradient ? "gradient of its input" : "output")};
    }
  };
  TrainingServices services(config_.training, micro_batches, store_, nullptr, scalars_);
  set_targets(services);
  set_routers(services, nullptr);
  executor_.run(inputs, services);
  return first;
}

}  // namespace stepforge
