// SPDX-License-Identifier: Apache-2.0
// Balance of experts by the corrections of their routers, in whole runs.
#include <map>
#include <mutex>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include "tests/catalog/all_families.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kBalancedExperts = 8;

/// Two layers with experts, whose routers see a stream in which some are favoured.
Strings balanced_run(const std::filesystem::path& run_dir, double speed, const Strings& more = {}) {
  return trainer_run(run_dir) + Strings{"model.family=deepseek_v3", "model.norm_eps=1e-6"} +
         setting_overrides("deepseek_v3") +
         Strings{format("model.n_experts={}", kBalancedExperts),
                 "model.experts_per_token=2",
                 "model.n_expert_groups=1",
                 "model.groups_per_token=1",
                 format("model.router_bias_update_speed={}", speed),
                 "training.global_batch_size=8",
                 "optimizer.lr=1e-4"} +
         more;
}

/// The correction of each layer, on the host.
std::map<std::string, at::Tensor> corrections(const Trainer& trainer) {
  std::map<std::string, at::Tensor> found;
  for (size_t u = 0; u < trainer.store->size(); ++u) {
    const UnitStore& unit = trainer.store->unit(u);
    if (unit.spec().state) found[unit.spec().name] = unit.master_view(0).clone();
  }
  return found;
}

/// The tokens of the experts of each layer, from step `first` on.
class LoadMeter {
 public:
  void attach(Trainer& trainer, int64_t first) {
    trainer.train_step->on_router_report = [this, &trainer, first](const RouterReport& report) {
      if (trainer.state.step < first) return;
      at::Tensor& load = load_[report.layer];
      load = load.defined() ? load + report.tokens_per_expert : report.tokens_per_expert.clone();
    };
  }

  /// The largest load of an expert divided by the mean, of the worst layer.
  double imbalance() const {
    double worst = 0.0;
    for (const auto& [layer, load] : load_)
      worst = std::max(worst, load.max().item<double>() / load.to(at::kDouble).mean().item<double>());
    return worst;
  }
  int64_t layers() const { return std::ssize(load_); }

 private:
  std::map<int64_t, at::Tensor> load_;
};

/// All tokens have something in common, which some experts like more than others.
void skew_stream(ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u)
    for (size_t i = 0; i < store.unit(u).parameters().size(); ++i) {
      const std::string& name = store.unit(u).spec().parameters[i].name;
      if (name.ends_with(".mlp.router")) store.unit(u).master_view(i).mul_(4.0);
      if (name == "embedding.weight") store.unit(u).master_view(i).add_(0.03);
    }
}

double imbalance_of(double speed, const Strings& more = {}) {
  const TempFolder folder;
  TestRun run(
      balanced_run(folder / "run", speed,
                   Strings{"training.steps=240", "checkpoint.enable=false", "metrics.log_freq=100"} + more));
  LoadMeter meter;
  meter.attach(run.build(), 200);
  skew_stream(*run.trainer().store);
  run.trainer().run();
  EXPECT_EQ(meter.layers(), 2);
  return meter.imbalance();
}

TEST(RouterBalance, EvensTheLoadOfExpertsAndWithoutItTheLoadStaysUneven) {
  EXPECT_GT(imbalance_of(0.0, {"model.router_z_loss_weight=1e-9"}), 1.4);  // so that routers report
  EXPECT_LT(imbalance_of(3e-3), 1.2);
}

/// Counted in the first forward of a micro-batch, and once however the step is divided.
// Finds what went wrong in torchtitan#4154 (counts of tokens not summed over tensor parallelism).
TEST(RouterBalance, IsTheSameUnderRecomputationAccumulationAndOnSeveralRanks) {
  const TempFolder folder;
  const auto after = [&](const std::string& name, const Strings& more) {
    TestRun run(
        balanced_run(folder / name, 1e-3, Strings{"checkpoint.enable=false", "optimizer.lr=1e-30"} + more));
    run.run();
    return corrections(run.trainer());
  };
  const auto expected = after("whole", {"training.local_batch_size=8"});
  ASSERT_EQ(expected.size(), 2U);
  for (const auto& [name, correction] : expected)
    EXPECT_GT(correction.abs().max().item<double>(), 1e-3) << name;
  const std::vector<Strings> ways = {{"training.local_batch_size=1"},
                                     {"training.local_batch_size=2", "activation_checkpoint.mode=full"},
                                     {"training.local_batch_size=4", "activation_checkpoint.mode=regions",
                                      "activation_checkpoint.regions=[\"mlp\"]"}};
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto actual = after(format("way-{}", i), ways[i]);
    for (const auto& [name, correction] : expected)
      EXPECT_TRUE(at::equal(actual.at(name), correction)) << i << name;
  }
  const Strings pipeline{"parallelism.pipeline_parallel_degree=2"};
  const Strings spread{"parallelism.expert_parallel_degree=2"};
  const Strings tensor{"parallelism.tensor_parallel_degree=2",
                       "parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"};
  const Strings parts{"parallelism.expert_tensor_parallel_degree=2"};
  const std::vector<std::pair<int, Strings>> layouts = {
      {2, {}},
      {2, {"parallelism.data_parallel_replicate_degree=2", "parallelism.data_parallel_shard_degree=1"}},
      {2, pipeline},
      {2, tensor},
      {2, tensor + Strings{"parallelism.enable_sequence_parallel=false"}},
      {2, spread},
      {4, spread},
      {2, tensor + spread},
      {4, tensor + spread},
      {2, tensor + parts},
      {4, tensor + parts + spread},
      {4, pipeline + spread}};
  for (const auto& [count, layout] : layouts) {
    const std::string way = format("{} ranks, {}", count, join(layout, " "));
    std::map<std::string, at::Tensor> together;
    std::mutex mutex;
    RankThreads ranks(count);
    ranks.run(
        [&, &layout = layout](int) {
          return balanced_run(
              folder / "ranks", 1e-3,
              Strings{"checkpoint.enable=false", "optimizer.lr=1e-30", "training.local_batch_size=2"} +
                  layout);
        },
        [&](TestRun& run, int) {
          after_build_step(run.trainer(), "metrics", [&](Trainer& trainer) {
            trainer.add_callback(std::make_unique<CallAt>([&](Trainer& done) {
              const std::lock_guard lock(mutex);
              for (const auto& [name, correction] : corrections(done)) together[name] = correction;
            }));
          });
        });
    for (const std::string& failure : ranks.failures) EXPECT_EQ(failure, "") << way;
    ASSERT_EQ(together.size(), 2U) << way;
    for (const auto& [name, correction] : expected)
      EXPECT_TRUE(at::equal(together.at(name), correction)) << way << ", " << name;
  }
}

TEST(RouterBalance, ACorrectionIsInTheCheckpointAndARunResumesWithTheSameBits) {
  const TempFolder folder;
  const Strings settings{"checkpoint.interval=4"};
  TestRun whole(balanced_run(folder / "whole", 1e-3, settings));
  const Records expected = whole.run();
  {
    TestRun half(balanced_run(folder / "half", 1e-3, settings));
    half.run(4);
  }
  TestRun rest(balanced_run(folder / "half", 1e-3, settings));
  const Records resumed = rest.run();
  ASSERT_EQ(resumed.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(resumed[i], expected[4 + i]);
  for (const auto& [name, correction] : corrections(whole.trainer())) {
    EXPECT_TRUE(at::equal(corrections(rest.trainer()).at(name), correction)) << name;
    EXPECT_NEAR(correction.sum().item<double>(), 0.0, 1e-6) << name;
  }
}

TEST(RouterBalance, ASkippedStepChangesNoCorrection) {
  const TempFolder folder;
  TestRun run(balanced_run(folder / "run", 1e-3,
                           {"debug.plant_nan_step=3", "debug.plant_nan_block=layers.1",
                            "training.nonfinite=skip", "training.steps=4"}));
  std::vector<std::map<std::string, at::Tensor>> steps;
  run.build().add_callback(
      std::make_unique<CallAt>([&](Trainer& trainer) { steps.push_back(corrections(trainer)); }));
  run.trainer().run();
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& [name, correction] : steps[1]) {
    EXPECT_TRUE(at::equal(steps[2].at(name), correction)) << name;
    EXPECT_FALSE(at::equal(steps[3].at(name), correction)) << name;
  }
}

TEST(RouterBalance, WithoutASpeedTheCorrectionsStay) {
  const TempFolder folder;
  TestRun run(balanced_run(folder / "run", 0.0));
  run.run();
  for (const auto& [name, correction] : corrections(run.trainer()))
    EXPECT_TRUE(at::equal(correction, at::zeros_like(correction))) << name;
}

}  // namespace
}  // namespace stepforge::testing
