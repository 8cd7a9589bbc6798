// SPDX-License-Identifier: Apache-2.0
// The numbers of a step stay in its scalars: operations read them there when they run, the host after the run.
#include "stepforge/train/step_scalars.h"

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "stepforge/train/training_services.h"
#include "tests/models/training.h"

namespace stepforge::testing {
namespace {

/// Called before each operation; may change the scalars.
using Meddle = std::function<void(const Operation& operation, const StepScalars& step)>;

struct Finished {
  at::Tensor masters, gradients;
  int64_t updates = 0;
  double loss = 0.0, norm = 0.0, finite = 0.0;
};

/// The first step of a tiny job with two micro-batches, by the list and its services alone. Nothing reads a
/// scalar on the host before the run has ended.
Finished run_list(const Meddle& meddle = {}) {
  Config config = tiny_job();
  config.training.local_batch_size = 4;
  Job job(config);
  const std::vector<Batch> batches = job.split(job.made_up_rows());
  const StepScalars step(job.program.micro_batches, 1, at::kCPU);
  TrainingServices services(job.config.training, batches, job.store, &job.optimizer, step);
  step.update.lr_factor.fill_(1.0);
  StepInputs inputs;
  inputs.watch = [&](const Operation& operation, bool ended) {
    if (meddle && !ended) meddle(operation, step);
  };
  job.executor.run(inputs, services);
  job.optimizer.end_update(step.update);
  const HostScalars host(step);
  return {job.masters(),   job.gradients(), job.optimizer.steps(),
          host(step.loss), host(step.norm), host(step.update.finite)};
}

/// Changes the scalars before each operation of this kind.
Meddle before(OpKind kind, std::function<void(const StepScalars&)> change) {
  return [kind, change = std::move(change)](const Operation& operation, const StepScalars& step) {
    if (operation.kind == kind) change(step);
  };
}

at::Tensor initial_masters() {
  return Job(tiny_job()).masters();
}

TEST(StepScalars, OfAListRunAreTheResultOfAStep) {
  const Finished finished = run_list();
  Config config = tiny_job();
  config.training.local_batch_size = 4;
  Job job(config);
  const StepResult result = job.step(job.split(job.made_up_rows()), 0, 1.0);
  EXPECT_EQ(finished.loss, result.loss);
  EXPECT_EQ(finished.norm, result.grad_norm);
  EXPECT_TRUE(result.updated);
  EXPECT_EQ(finished.updates, 1);
  EXPECT_TRUE(at::equal(finished.masters, job.masters()));
  EXPECT_FALSE(at::equal(finished.masters, initial_masters()));
}

TEST(StepScalars, UpdatesReadTheFlagWhenTheyRun) {
  const Finished down =
      run_list(before(OpKind::update, [](const StepScalars& step) { step.update.finite.zero_(); }));
  EXPECT_TRUE(at::equal(down.masters, initial_masters()));
  EXPECT_EQ(down.updates, 0);
}

TEST(StepScalars, UpdatesReadClippingAndLearningRateWhenTheyRun) {
  const Finished still =
      run_list(before(OpKind::update, [](const StepScalars& step) { step.update.lr_factor.zero_(); }));
  EXPECT_TRUE(at::equal(still.masters, initial_masters()));
  EXPECT_EQ(still.updates, 1);
  const Finished decayed =
      run_list(before(OpKind::update, [](const StepScalars& step) { step.update.grad_scale.zero_(); }));
  EXPECT_FALSE(at::equal(decayed.masters, initial_masters()));
  EXPECT_FALSE(at::equal(decayed.masters, run_list().masters));
}

TEST(StepScalars, TheHeadReadsTheTokenWeightWhenItRuns) {
  bool halved = false;
  const Finished scaled = run_list([&](const Operation& operation, const StepScalars& step) {
    if (operation.kind == OpKind::loss_forward_backward && !std::exchange(halved, true))
      step.token_weight.mul_(0.5);  // a power of two scales every product exactly
  });
  EXPECT_TRUE(at::equal(scaled.gradients, run_list().gradients * 0.5));
  EXPECT_EQ(scaled.norm, run_list().norm * 0.5);
}

TEST(StepScalars, TheFlagIsThatOfTheScalarsAtItsCheck) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const Finished loss =
        run_list(before(OpKind::check_finite, [bad](const StepScalars& step) { step.loss.fill_(bad); }));
    const Finished norm =
        run_list(before(OpKind::check_finite, [bad](const StepScalars& step) { step.norm.fill_(bad); }));
    for (const Finished& finished : {loss, norm}) {
      EXPECT_EQ(finished.finite, 0.0);
      EXPECT_EQ(finished.updates, 0);
      EXPECT_TRUE(at::equal(finished.masters, initial_masters()));
    }
  }
}

TEST(StepScalars, AreViewsOfOneBufferThatDoNotOverlap) {
  const StepScalars step(3, 2, at::kCPU);
  step.all.zero_();
  const at::Tensor& all = step.all;
  for (const at::Tensor& view :
       {step.own_weight, step.data_ranks, step.counts, step.sft_scale, step.label_mean, step.token_weight,
        step.own_losses, step.gathered_losses, step.loss, step.max_loss, step.norm_terms, step.norm,
        step.update.finite, step.update.number, step.update.lr_factor, step.update.grad_scale}) {
    EXPECT_TRUE(view.eq(0).all().item<bool>());
    view.fill_(1);
  }
  EXPECT_TRUE(all.eq(1).all().item<bool>());
  // What ranks exchange lies in one piece.
  step.label_weight.fill_(1.5);
  step.valid_labels.fill_(2);
  step.interrupted.fill_(3);
  EXPECT_EQ(step.counts[0].item<double>(), 1.5);
  EXPECT_EQ(step.counts[1].item<double>(), 2.0);
  EXPECT_EQ(step.counts[2].item<double>(), 3.0);
  step.own_mean.fill_(4);
  EXPECT_EQ(step.own_losses[3].item<double>(), 4.0);
}

TEST(StepScalars, OfOneRankGatherItsOwnLossesInPlace) {
  const StepScalars step(3, 1, at::kCPU);
  EXPECT_EQ(step.gathered_losses.data_ptr(), step.own_losses.data_ptr());
  EXPECT_EQ(step.gathered_losses.sizes(), (std::vector<int64_t>{1, 4}));
}

TEST(StepScalars, AStepBeginsWithoutAnythingOfTheOneBefore) {
  const StepScalars step(1, 1, at::kCPU);
  step.all.fill_(std::nan(""));
  step.begin(2.5, 5, 8, 2);
  const HostScalars host(step);
  EXPECT_EQ(host(step.own_weight), 2.5);
  EXPECT_EQ(host(step.label_weight), 2.5);
  EXPECT_EQ(host(step.valid_labels), 5.0);
  EXPECT_EQ(host(step.data_ranks), 2.0);
  for (const at::Tensor& number : {step.interrupted, step.token_weight, step.own_mean, step.loss, step.norm,
                                   step.update.finite, step.update.number})
    EXPECT_EQ(host(number), 0.0);
}

}  // namespace
}  // namespace stepforge::testing
