// SPDX-License-Identifier: Apache-2.0
// With ordinary models, several ranks against one rank: both families in odd sizes.
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

struct DataCase {
  int ranks;
  int replicas;
  Strings more;
};

Strings data_overrides(const DataCase& layout) {
  return layout.more + Strings{format("parallelism.data_parallel_replicate_degree={}", layout.replicas)};
}

/// Three heads of 14; rows for 2, 3, 4 and 8 ranks.
Strings real_job(const std::filesystem::path& run_dir, const std::string& family, int64_t steps) {
  return odd_job(run_dir, family, steps,
                 {"model.n_heads=3", "model.n_kv_heads=1", "model.head_dim=14",
                  "training.global_batch_size=24", "checkpoint.enable=false"});
}

class RealArithmetic : public ::testing::TestWithParam<const char*> {
 protected:
  /// Compares the losses of every layout with those of one rank. Norms, weights and moments must be equal on
  /// all ranks.
  void compare(const std::vector<DataCase>& layouts, int64_t steps, double tolerance) {
    const TempFolder folder;
    const Records one = TestRun(real_job(folder / "one", GetParam(), steps)).run();
    ASSERT_EQ(static_cast<int64_t>(one.size()), steps);
    EXPECT_LT(one.back().loss, one.front().loss);
    for (const DataCase& layout : layouts) {
      const std::string name = format("{} ranks, {}", layout.ranks, join(data_overrides(layout), " "));
      const auto many = RankThreads(layout.ranks)
                            .run(real_job(folder / "many", GetParam(), steps) + data_overrides(layout));
      expect_same_numbers(many, many[0], name);
      double distance = 0.0;
      for (size_t step = 0; step < one.size(); ++step) {
        distance = std::max(distance, std::abs(many[0][step].loss - one[step].loss));
        EXPECT_EQ(many[0][step].tokens_seen, one[step].tokens_seen);
      }
      EXPECT_LE(distance, tolerance) << name;
    }
  }
};

const Strings kEachMicroBatch{"parallelism.fsdp_reduce_each_micro_batch=true"};
const Strings kNeverReshard{"parallelism.fsdp_reshard_after_forward=never",
                            "activation_checkpoint.mode=full"};
const Strings kLargerMicroBatches{"training.local_batch_size=3", "parallelism.fsdp_forward_prefetch=2"};

TEST_P(RealArithmetic, LossesOfTwentyStepsAreWithin1e5) {
  compare({{2, 1, kLargerMicroBatches},
           {3, 1, kEachMicroBatch},
           {3, 3, {}},
           {4, 1, kNeverReshard},
           {4, 2, kLargerMicroBatches},
           {8, 1, {}},
           {8, 4, kEachMicroBatch}},
          20, 1e-5);
}

TEST_P(RealArithmetic, LongTestLossesOfAHundredStepsAreWithin1e3) {
  if (!long_tests()) GTEST_SKIP() << "STEPFORGE_LONG_TESTS=1 runs it";
  compare(
      {{2, 1, {}}, {3, 1, kEachMicroBatch}, {4, 2, kLargerMicroBatches}, {8, 1, kNeverReshard}, {8, 8, {}}},
      100, 1e-3);
}

/// Five steps, in the long tests a hundred.
TEST_P(RealArithmetic, OrderedModeGivesTheBitsOfOneRankForEverySplitByAPowerOfTwo) {
  const TempFolder folder;
  const Strings ordered{"training.reduction=ordered", "training.global_batch_size=8", "model.dropout=0.1"};
  const auto job = [&](const std::string& name) {
    return real_job(folder / name, GetParam(), long_tests() ? 100 : 5) + ordered;
  };
  const Records one = TestRun(job("one")).run();
  const std::vector<DataCase> layouts = {
      {2, 1, {}},
      {2, 2, {}},
      {4, 1, {"parallelism.fsdp_reshard_after_forward=never"}},
      {4, 2, {"parallelism.fsdp_forward_prefetch=0", "activation_checkpoint.mode=full"}},
      {4, 4, {}},
      {8, 1, {"parallelism.fsdp_forward_prefetch=3"}},
      {8, 2, {"parallelism.fsdp_reduce_in_flight=3"}},
  };
  for (const DataCase& layout : layouts) {
    expect_same_numbers(RankThreads(layout.ranks).run(job("many") + data_overrides(layout)), one,
                        format("{} ranks, {}", layout.ranks, join(data_overrides(layout), " ")));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RealArithmetic, ::testing::Values("llama", "qwen3"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace stepforge::testing
