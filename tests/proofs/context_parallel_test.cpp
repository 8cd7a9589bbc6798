// SPDX-License-Identifier: Apache-2.0
// With context parallelism, training and checkpoints equal those of one rank.
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

/// Twelve heads of 6 in four groups; rows of 48 tokens for up to 8 ranks and for 3.
Strings context_job(const std::filesystem::path& run_dir, const std::string& family, int64_t steps) {
  return odd_job(run_dir, family, steps,
                 {"model.n_heads=12", "model.n_kv_heads=4", "model.head_dim=6", "training.seq_len=48",
                  "training.global_batch_size=12"});
}

const Strings kHybrid{"parallelism.context_parallel_method=hybrid"};
const Strings kOneRange{"parallelism.context_parallel_load_balance=none"};
const Strings kTokenRegions{"activation_checkpoint.mode=regions",
                            "activation_checkpoint.regions=[\"attention\"]", "model.dropout=0.1"};

class ContextParallelTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(ContextParallelTraining, LossesAndNormsAreThoseOfOneRank) {
  const std::vector<LayoutCase> layouts = {{2, 2, 1, 1, {}},
                                           {2, 2, 1, 1, kUlysses + kTokenRegions},
                                           {2, 2, 1, 1, kRing},
                                           {3, 3, 1, 1, kRing + kOneRange + kRecomputed},
                                           {8, 4, 2, 1, kRing + kTokenRegions},
                                           {3, 3, 1, 1, kOneRange + kTokenRegions},
                                           {4, 4, 1, 1, kRecomputed},
                                           {4, 4, 1, 1, kUlysses + kOneRange + kRecomputed},
                                           {4, 2, 1, 1, kByDim},
                                           {4, 2, 1, 2, kUlysses},
                                           {4, 2, 2, 1, kRecomputed},
                                           {6, 6, 1, 1, kOffloaded},
                                           {8, 2, 2, 2, kUlysses + kOffloaded},
                                           {8, 4, 2, 1, {}},
                                           {4, 4, 1, 1, kHybrid + kRecomputed},
                                           {4, 4, 1, 1, kHybrid + kOneRange},
                                           {8, 4, 2, 1, kHybrid + kTokenRegions}};
  for (const LayoutCase& layout : cases_of(GetParam(), layouts)) {
    if (layout.ranks > 4 && !long_tests()) continue;  // slow on two cores
    expect_losses_of_one_rank(
        layout, [](const std::filesystem::path& run_dir) { return context_job(run_dir, GetParam(), 20); });
  }
}

TEST_P(ContextParallelTraining, InBf16LossesStayWithinItsPrecision) {
  const TempFolder folder;
  const Strings bf16 = kNoCheckpoint + Strings{"precision.compute=bf16"};
  const Records one = TestRun(context_job(folder / "one", GetParam(), 20) + bf16).run();
  for (const Strings& method : cases_of<Strings>(GetParam(), {{}, kRing, kUlysses})) {
    const auto many = RankThreads(4).run(context_job(folder / "many", GetParam(), 20) + bf16 +
                                         overrides_of({4, 2, 1, 1, method}));
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_NEAR(many[0][step].loss, one[step].loss, 0.02) << step;
      for (const Records& records : many) EXPECT_EQ(records[step].loss, many[0][step].loss) << step;
    }
  }
}

TEST_P(ContextParallelTraining, ValidationIsThatOfOneRank) {
  const TempFolder folder;
  const Strings validated = kNoCheckpoint + Strings{"data.validation=[{format=\"synthetic\"}]",
                                                    "data.synthetic_tokens=4800", "validation.freq=2"};
  TestRun one(context_job(folder / "one", GetParam(), 2) + validated);
  one.run();
  const EvaluationResult expected = one.trainer().last_validation;
  EXPECT_GT(expected.valid_labels, 1000);
  std::vector<EvaluationResult> results(4);
  const auto keep = [&](TestRun& run, int rank) {
    run.trainer().add_callback(std::make_unique<CallAtValidation>([&results, rank](Trainer& trainer) {
      results[static_cast<size_t>(rank)] = trainer.last_validation;
    }));
  };
  const Strings args =
      context_job(folder / "many", GetParam(), 2) + validated + overrides_of({4, 2, 2, 1, {}});
  RankThreads threads(4);
  threads.run([&](int) { return args; }, keep);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(threads.failures[rank], "");
    EXPECT_NEAR(results[rank].loss, expected.loss, 1e-5);
    EXPECT_EQ(results[rank].valid_labels, expected.valid_labels);
    EXPECT_EQ(results[rank].tokens, expected.tokens);
  }
}

TEST_P(ContextParallelTraining, AFailingRankEndsTheOthers) {
  const TempFolder folder;
  for (const Strings& method : cases_of<Strings>(GetParam(), {{}, kRing, kUlysses, kHybrid})) {
    RankThreads threads(4);
    const auto fail = [](TestRun& run, int rank) {
      if (rank != 3) return;
      run.trainer().add_callback(std::make_unique<CallAt>([](Trainer&) { throw Error("planted failure"); }));
    };
    const Strings args =
        context_job(folder / "run", GetParam(), 4) + kNoCheckpoint + overrides_of({4, 4, 1, 1, method});
    threads.run([&](int) { return args; }, fail);
    for (const std::string& failure : threads.failures) EXPECT_CONTAINS(failure, "planted failure");
    std::filesystem::remove_all(folder / "run");
  }
}

/// Through attention it reaches the other ranks in later blocks.
TEST_P(ContextParallelTraining, AValueThatIsNotFiniteIsNamedWhereItBegan) {
  const TempFolder folder;
  for (const Strings& method : cases_of<Strings>(GetParam(), {{}, kRing, kUlysses})) {
    RankThreads threads(2);
    const auto plant = [](TestRun& run, int rank) {
      if (rank != 1) return;
      run.trainer().add_callback(std::make_unique<CallAt>([](Trainer& trainer) {
        trainer.config.debug.plant_nan_step = 2;
        trainer.config.debug.plant_nan_block = "layers.0";
      }));
    };
    const Strings args =
        context_job(folder / "run", GetParam(), 4) + kNoCheckpoint + overrides_of({2, 2, 1, 1, method});
    threads.run([&](int) { return args; }, plant);
    for (const std::string& failure : threads.failures)
      EXPECT_CONTAINS(failure, "first not finite in block layers.0 (output) on rank 1");
    std::filesystem::remove_all(folder / "run");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ContextParallelTraining, ::testing::Values("llama", "qwen3"),
                         [](const auto& family) { return std::string(family.param); });

class ExactContextParallel : public ExactRuns {
 protected:
  /// Rows that divide into 16 chunks.
  const Strings long_rows_{"training.seq_len=16", "checkpoint.enable=true"};
};

// Finds what went wrong in prime-rl#2562 (tokens counted cp times), Megatron-LM#673 (scale of the loss).
TEST_P(ExactContextParallel, EveryLayoutGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const WholeRun one = layout_on_one(folder / "one", long_rows_);
  const std::vector<LayoutCase> layouts = {{2, 2, 1, 1, {}},       {4, 4, 1, 1, kHybrid},
                                           {4, 2, 1, 1, kRing},    {4, 2, 1, 2, {}},
                                           {4, 2, 2, 1, kUlysses}, {8, 8, 1, 1, kHybrid},
                                           {8, 4, 2, 1, kRing},    {8, 4, 1, 2, kOneRange + kHybrid},
                                           {8, 2, 4, 1, {}},       {8, 2, 2, 2, kOneRange},
                                           {8, 2, 1, 4, kUlysses}, {6, 2, 3, 1, kAllTokens},
                                           {6, 2, 1, 3, {}}};
  for (const LayoutCase& layout : layouts) {
    const int key = layout.ranks * 1000 + layout.context * 100 + layout.tensor * 10 + layout.replicas;
    const int data_ranks = layout.ranks / layout.tensor / layout.context;
    for (const Strings& choice : exact_choices(data_ranks, key, long_tests() ? 60 : 1))
      expect_bits_of(one, folder / "many", layout.ranks, long_rows_ + choice + overrides_of(layout));
  }
}

TEST_P(ExactContextParallel, ARunMovesBetweenLayoutsByResume) {
  const TempFolder folder;
  run_one(folder / "one", long_rows_);
  const std::vector<LayoutCase> layouts = {
      {2, 1, 2, 1, {}}, {2, 2, 1, 1, {}}, {4, 1, 1, 1, {}}, {1, 1, 1, 1, {}}, {8, 4, 2, 1, {}}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Strings job = exact_job(folder / "many") + long_rows_ + overrides_of(layouts[i]);
    run_many(layouts[i].ranks, job, static_cast<int64_t>(2 * i + 2));
  }
  expect_same_tensors(saved_tensors(folder / "many", 10), saved_tensors(folder / "one", 10), "moved");
}

INSTANTIATE_TEST_SUITE_P(Models, ExactContextParallel,
                         ::testing::Values(ExactModel::plain, ExactModel::shared, ExactModel::adapted),
                         [](const auto& model) { return std::string(exact_model_name(model.param)); });

}  // namespace
}  // namespace stepforge::testing
