// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/optim/optimizer.h"
#include "stepforge/train/train_step.h"
#include "tests/models/training.h"

namespace stepforge::testing {
namespace {

/// One parameter in fp64, updated as torch.optim.AdamW documents it.
struct Reference {
  at::Tensor value;
  at::Tensor mean;
  at::Tensor square;
  double lr;
  double decay;

  void update(const at::Tensor& gradient, int step, double beta1, double beta2, double eps) {
    value = value * (1.0 - lr * decay);
    mean = beta1 * mean + (1.0 - beta1) * gradient;
    square = beta2 * square + (1.0 - beta2) * gradient * gradient;
    const at::Tensor root = square.sqrt() / std::sqrt(1.0 - std::pow(beta2, step)) + eps;
    value = value - lr / (1.0 - std::pow(beta1, step)) * mean / root;
  }
};

void fill_gradients(Job& job, uint64_t seed) {
  for (size_t u = 0; u < job.store.size(); ++u) {
    for (Parameter& parameter : job.store.unit(u).parameters()) {
      parameter.gradient().copy_(random_tensor(parameter.gradient().sizes(), seed++));
    }
  }
}

void update_all(Job& job, const UpdateScalars& scalars) {
  job.optimizer.begin_update(scalars);
  for (size_t u = 0; u < job.store.size(); ++u) job.optimizer.update(static_cast<int>(u), scalars);
  job.optimizer.end_update(scalars);
}

void update_all(Job& job, double lr_factor, double grad_scale) {
  update_all(job, {scalar(1), scalar(0), scalar(lr_factor), scalar(grad_scale)});
}

bool padding_is_zero(const UnitStore& unit, const at::Tensor& flat) {
  at::Tensor copy = flat.clone();
  for (size_t i = 0; i < unit.spec().parameters.size(); ++i) {
    copy.narrow(0, unit.shards().gathered().offsets[i], unit.spec().parameters[i].elements()).zero_();
  }
  return copy.eq(0).all().item<bool>();
}

TEST(AdamW, TenStepsMatchAnFp64ReferenceInEveryGroup) {
  Config config = tiny_job();
  config.optimizer.weight_decay = 0.1;
  config.optimizer.param_groups = {{"mlp\\.down$", 3e-2, 0.5, 0.8, 0.9}};
  Job job(config);
  std::vector<std::vector<Reference>> references;
  for (size_t u = 0; u < job.store.size(); ++u) {
    auto& unit = references.emplace_back();
    for (size_t i = 0; i < job.store.unit(u).spec().parameters.size(); ++i) {
      const ParameterSpec& spec = job.store.unit(u).spec().parameters[i];
      const bool special = spec.name.ends_with("mlp.down");
      const at::Tensor value = job.store.unit(u).master_view(i).to(at::kDouble);
      unit.push_back({value, at::zeros_like(value), at::zeros_like(value),
                      special ? 3e-2 : config.optimizer.lr, special ? 0.5 : (spec.decays() ? 0.1 : 0.0)});
    }
  }
  for (int step = 1; step <= 10; ++step) {
    fill_gradients(job, 1000 * static_cast<uint64_t>(step));
    for (size_t u = 0; u < job.store.size(); ++u) {
      for (size_t i = 0; i < references[u].size(); ++i) {
        const Parameter& parameter = job.store.unit(u).parameters()[i];
        const bool special = parameter.spec().name.ends_with("mlp.down");
        references[u][i].update(parameter.gradient().to(at::kDouble) * 0.5, step, special ? 0.8 : 0.9,
                                special ? 0.9 : 0.95, config.optimizer.eps);
      }
    }
    update_all(job, 1.0, 0.5);
  }
  for (size_t u = 0; u < job.store.size(); ++u) {
    for (size_t i = 0; i < references[u].size(); ++i) {
      const at::Tensor value = job.store.unit(u).master_view(i).to(at::kDouble);
      const double error = (value - references[u][i].value).abs().max().item<double>();
      EXPECT_LE(error, 2e-6) << job.store.unit(u).spec().parameters[i].name;
    }
  }
}

TEST(AdamW, PaddingOfMastersAndMomentsStaysZero) {
  Job job(tiny_job("qwen3"));
  for (int step = 1; step <= 3; ++step) {
    job.step(job.split(job.made_up_rows()), step, 1.0);
  }
  for (size_t u = 0; u < job.store.size(); ++u) {
    const UnitStore& unit = job.store.unit(u);
    EXPECT_TRUE(padding_is_zero(unit, unit.master()));
    EXPECT_TRUE(padding_is_zero(unit, unit.gradient()));
    EXPECT_TRUE(padding_is_zero(unit, job.optimizer.slot(u, 0)));
    EXPECT_TRUE(padding_is_zero(unit, job.optimizer.slot(u, 1)));
    EXPECT_GT(job.optimizer.slot(u, 1).abs().max().item<double>(), 0.0);
  }
}

TEST(AdamW, TheLearningRateFactorAppliesToEveryGroup) {
  Job full(tiny_job());
  Config halved = tiny_job();
  halved.optimizer.lr /= 2;
  Job half(halved);
  fill_gradients(full, 1);
  fill_gradients(half, 1);
  update_all(full, 0.5, 1.0);
  update_all(half, 1.0, 1.0);
  EXPECT_TRUE(at::equal(full.masters(), half.masters()));
  EXPECT_EQ(full.optimizer.steps(), 1);
}

/// All moments of the model, concatenated.
at::Tensor moments(const Job& job) {
  std::vector<at::Tensor> all;
  for (size_t u = 0; u < job.store.size(); ++u)
    for (size_t slot = 0; slot < 2; ++slot) all.push_back(job.optimizer.slot(u, slot).clone());
  return at::cat(all);
}

TEST(AdamW, AnUpdateWhoseFlagIsDownChangesNoBitAndDoesNotCount) {
  Job job(tiny_job());
  Job without(tiny_job());
  const UpdateScalars scalars{scalar(0), scalar(0), scalar(1), scalar(1)};
  for (uint64_t step = 0; step < 3; ++step) {
    const bool down = step == 1;
    scalars.finite.fill_(down ? 0.0 : 1.0);
    fill_gradients(job, step);
    if (down) job.store.unit(1).gradient().fill_(std::nan(""));
    update_all(job, scalars);
    if (down) continue;
    fill_gradients(without, step);
    update_all(without, 1.0, 1.0);
  }
  EXPECT_EQ(job.optimizer.steps(), 2);
  EXPECT_EQ(scalars.number.item<double>(), 2.0);
  EXPECT_TRUE(at::equal(job.masters(), without.masters()));
  EXPECT_TRUE(at::equal(moments(job), moments(without)));
}

TEST(Clipping, IsAppliedInTheUpdateAndLimitsTheNorm) {
  Config clipped = tiny_job();
  clipped.training.max_norm = 0.25;
  Job job(clipped);
  const StepResult result = job.step(job.split(job.made_up_rows()), 0, 1.0);
  ASSERT_GT(result.grad_norm, 1.0);
  Job reference(tiny_job());
  reference.step(reference.split(reference.made_up_rows()), 0, 0.0);
  EXPECT_TRUE(at::equal(job.gradients(), reference.gradients())) << "gradients are unchanged";
  Job by_hand(tiny_job());
  for (size_t u = 0; u < job.store.size(); ++u)
    by_hand.store.unit(u).gradient().copy_(job.store.unit(u).gradient());
  update_all(by_hand, 1.0, 0.25 / (result.grad_norm + 1e-6));
  EXPECT_TRUE(at::equal(job.masters(), by_hand.masters()));
  // The first moment is (1 - beta1) times the clipped gradient.
  EXPECT_NEAR(at::cat({job.optimizer.slot(1, 0)}).norm().item<double>(),
              0.1 * 0.25 * job.store.unit(1).gradient().norm().item<double>() / result.grad_norm, 1e-7);
}

TEST(Clipping, AMaxNormOfZeroReportsTheNormWithoutClipping) {
  Config config = tiny_job();
  Job job(config);
  const StepResult result = job.step(job.split(job.made_up_rows()), 0, 1.0);
  EXPECT_GT(result.grad_norm, 1.0);
  const at::Tensor moment = job.optimizer.slot(1, 0);
  EXPECT_TRUE(at::allclose(moment, job.store.unit(1).gradient() * 0.1, 1e-5, 1e-9));
}

}  // namespace
}  // namespace stepforge::testing
