// SPDX-License-Identifier: Apache-2.0
// With tensor parallelism, training and checkpoints equal those of one rank.
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

/// Twelve heads of 6; rows for 1, 2, 3 and 4 data ranks, of 24 tokens for as many slices.
Strings divided_job(const std::filesystem::path& run_dir, const std::string& family, int64_t steps) {
  return odd_job(run_dir, family, steps,
                 {"model.n_heads=12", "model.n_kv_heads=12", "model.head_dim=6", "training.seq_len=24",
                  "training.global_batch_size=12"});
}

class TensorParallelTraining : public ::testing::TestWithParam<const char*> {};

// Finds what went wrong in NeMo-RL#3788 and TransformerEngine#715 (copies counted in the norm), Megatron-LM#1446.
TEST_P(TensorParallelTraining, LossesAndNormsAreThoseOfOneRank) {
  const std::vector<LayoutCase> layouts = {
      {2, 1, 2, 1, {}},           {2, 1, 2, 1, kAllTokens + kRecomputed},
      {3, 1, 3, 1, kRegions},     {3, 1, 3, 1, kAllTokens + kWholeLogits},
      {4, 1, 4, 1, kRecomputed},  {4, 1, 2, 1, kByDim},
      {4, 1, 2, 2, kWholeLogits}, {6, 1, 3, 1, kOffloaded},
      {8, 1, 2, 2, kRecomputed},  {8, 1, 2, 4, kAllTokens},
      {2, 1, 2, 1, kAsync},       {6, 1, 3, 1, kAsync + kRecomputed}};
  for (const LayoutCase& layout : cases_of(GetParam(), layouts)) {
    expect_losses_of_one_rank(
        layout, [](const std::filesystem::path& run_dir) { return divided_job(run_dir, GetParam(), 20); });
  }
}

TEST_P(TensorParallelTraining, WithAPlanOfOnesOwnLossesAreThoseOfOneRank) {
  const auto replicated = [](const std::string& pattern) {
    return Strings{"parallelism.tensor_parallel_plan=[{pattern=\"" + pattern + "\",style=\"replicate\"}]"};
  };
  const std::vector<LayoutCase> layouts = {{2, 1, 2, 1, replicated("mlp")},
                                           {2, 1, 2, 1, replicated("attention|head") + kRecomputed},
                                           {4, 2, 2, 1, replicated("attention") + kRegions},
                                           {4, 1, 2, 1, replicated("embedding|layers.1.mlp") + kAllTokens},
                                           {4, 1, 2, 2, replicated("head") + kWholeLogits},
                                           {6, 1, 3, 1, replicated(".") + kByDim}};
  for (const LayoutCase& layout : cases_of(GetParam(), layouts)) {
    expect_losses_of_one_rank(
        layout, [](const std::filesystem::path& run_dir) { return divided_job(run_dir, GetParam(), 20); });
  }
}

TEST_P(TensorParallelTraining, AZLossIsThatOfOneRankAndChangesTheRun) {
  const auto job = [](const std::filesystem::path& run_dir, double weight) {
    return divided_job(run_dir, GetParam(), 20) + Strings{format("training.z_loss_weight={}", weight)};
  };
  for (const LayoutCase& layout : {LayoutCase{2, 1, 2, 1, {}}, LayoutCase{3, 1, 3, 1, kWholeLogits}})
    expect_losses_of_one_rank(layout,
                              [&](const std::filesystem::path& run_dir) { return job(run_dir, 0.1); });
  const TempFolder folder;
  const double with = TestRun(job(folder / "with", 0.1) + kNoCheckpoint).run().back().loss;
  const double without = TestRun(job(folder / "without", 0.0) + kNoCheckpoint).run().back().loss;
  EXPECT_GT(std::abs(with - without), 1e-3);
}

TEST_P(TensorParallelTraining, ASmoothedLossIsThatOfOneRankAndChangesTheRun) {
  const auto job = [](const std::filesystem::path& run_dir) {
    return divided_job(run_dir, GetParam(), 20) + Strings{"training.label_smoothing=0.2"};
  };
  for (const LayoutCase& layout : {LayoutCase{2, 1, 2, 1, {}}, LayoutCase{3, 1, 3, 1, kWholeLogits}})
    expect_losses_of_one_rank(layout, job);
  const TempFolder folder;
  const Records with = TestRun(job(folder / "with") + kNoCheckpoint).run();
  const Records without = TestRun(divided_job(folder / "without", GetParam(), 20) + kNoCheckpoint).run();
  EXPECT_GT(std::abs(with.back().loss - without.back().loss), 1e-2);
}

TEST_P(TensorParallelTraining, InBf16LossesStayWithinItsPrecision) {
  const TempFolder folder;
  const Strings bf16 = kNoCheckpoint + Strings{"precision.compute=bf16"};
  const Records one = TestRun(divided_job(folder / "one", GetParam(), 20) + bf16).run();
  const auto many = RankThreads(4).run(divided_job(folder / "many", GetParam(), 20) + bf16 +
                                       overrides_of({4, 1, 2, 1, {}}));
  for (size_t step = 0; step < one.size(); ++step) {
    EXPECT_NEAR(many[0][step].loss, one[step].loss, 0.02) << step;
    for (const Records& records : many) EXPECT_EQ(records[step].loss, many[0][step].loss) << step;
  }
}

TEST_P(TensorParallelTraining, OrderedModeGivesTheBitsOfOneDataRankOfTheSameDegree) {
  const TempFolder folder;
  const Strings ordered{"training.reduction=ordered", "training.global_batch_size=8", "model.dropout=0.1"};
  const auto run = [&](const char* name, int ranks, int replicas) {
    return RankThreads(ranks).run(divided_job(folder / name, GetParam(), 4) + ordered +
                                  overrides_of({ranks, 1, 2, replicas, {}}));
  };
  const auto one = run("one", 2, 1);
  const auto expected = saved_tensors(folder / "one", 4);
  const auto compare = [&](const char* name, int ranks, int replicas) {
    expect_same_steps(run(name, ranks, replicas), one[0], name);
    expect_same_tensors(saved_tensors(folder / name, 4), expected, name);
  };
  compare("sharded", 4, 1);
  compare("replicated", 4, 2);
  compare("both", 8, 2);
}

TEST_P(TensorParallelTraining, AValueThatIsNotFiniteStopsAllRanksAndIsNamed) {
  const TempFolder folder;
  const Strings args = divided_job(folder / "run", GetParam(), 4) + overrides_of({4, 1, 2, 1, {}}) +
                       Strings{"debug.plant_nan_step=2", "debug.plant_nan_block=layers.1"};
  RankThreads threads(4);
  threads.run([&](int) { return args; });
  for (const std::string& failure : threads.failures)
    EXPECT_CONTAINS(failure, "first not finite in block layers.1 (output) on rank 0");
}

TEST_P(TensorParallelTraining, AFailingRankEndsTheOthers) {
  const auto fail = [](TestRun& run, int rank) {
    if (rank != 3) return;
    run.trainer().add_callback(std::make_unique<CallAt>([](Trainer&) { throw Error("planted failure"); }));
  };
  for (const Strings& more : {Strings{}, kAsync}) {
    const TempFolder folder;
    RankThreads threads(4);
    const auto job = [&](int) {
      return divided_job(folder / "run", GetParam(), 4) + overrides_of({4, 1, 4, 1, more});
    };
    threads.run(job, fail);
    for (const std::string& failure : threads.failures) EXPECT_CONTAINS(failure, "planted failure");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TensorParallelTraining, ::testing::Values("llama", "qwen3"),
                         [](const auto& family) { return std::string(family.param); });

class ExactTensorParallel : public ExactRuns {
 protected:
  /// Rows that divide into 8 slices, and into 3.
  const Strings even_rows_{"training.seq_len=24", "checkpoint.enable=true"};
};

// Finds what went wrong in torchtune#2420 (scale), Megatron-LM#1446 (norms of slices).
TEST_P(ExactTensorParallel, EveryLayoutGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const WholeRun one = layout_on_one(folder / "one", even_rows_);
  const std::vector<LayoutCase> layouts = {
      {2, 1, 2, 1, {}}, {3, 1, 3, 1, {}}, {4, 1, 4, 1, {}}, {4, 1, 2, 1, {}}, {4, 1, 2, 2, {}},
      {6, 1, 3, 1, {}}, {8, 1, 8, 1, {}}, {8, 1, 4, 2, {}}, {8, 1, 2, 2, {}}, {8, 1, 2, 4, {}}};
  for (const LayoutCase& layout : layouts) {
    const int key = layout.ranks * 100 + layout.tensor * 10 + layout.replicas;
    for (const Strings& choice : exact_choices(layout.ranks / layout.tensor, key, long_tests() ? 60 : 1))
      expect_bits_of(one, folder / "many", layout.ranks, even_rows_ + choice + overrides_of(layout));
  }
}

TEST_P(ExactTensorParallel, ARunMovesBetweenLayoutsByResume) {
  const TempFolder folder;
  run_one(folder / "one", even_rows_);
  const std::vector<LayoutCase> layouts = {
      {2, 1, 2, 1, {}}, {4, 1, 1, 2, {}}, {6, 1, 3, 2, {}}, {1, 1, 1, 1, {}}, {8, 1, 4, 1, {}}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Strings job = exact_job(folder / "many") + even_rows_ + overrides_of(layouts[i]);
    run_many(layouts[i].ranks, job, static_cast<int64_t>(2 * i + 2));
  }
  expect_same_tensors(saved_tensors(folder / "many", 10), saved_tensors(folder / "one", 10), "moved");
}

INSTANTIATE_TEST_SUITE_P(Models, ExactTensorParallel,
                         ::testing::Values(ExactModel::plain, ExactModel::shared, ExactModel::adapted),
                         [](const auto& model) { return std::string(exact_model_name(model.param)); });

}  // namespace
}  // namespace stepforge::testing
