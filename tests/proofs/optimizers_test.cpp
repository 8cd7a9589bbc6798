// SPDX-License-Identifier: Apache-2.0
// Every optimizer trains, saves and resumes alike in every layout.
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

class Optimizers : public ::testing::TestWithParam<const char*> {
 protected:
  Strings job(const std::string& name, int64_t steps, const Strings& more = {}) const {
    return odd_job(folder_ / name, "llama", steps,
                   {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6", "model.tie_embeddings=false",
                    "training.global_batch_size=8", format("optimizer.name={}", GetParam()),
                    "optimizer.lr=1e-3", "optimizer.muon_compute=fp32"}) +
           more;
  }
  bool is_muon() const { return std::string_view(GetParam()) == "muon"; }

  TempFolder folder_;
};

TEST_P(Optimizers, LossesAreThoseOfOneRankInEveryLayout) {
  const Strings by_tensor{"parallelism.fsdp_partition=by_tensor"};
  const Records one = TestRun(job("one", 10) + kNoCheckpoint).run();
  std::vector<std::pair<int, Strings>> layouts = {
      {2, by_tensor},
      {4, by_tensor + Strings{"parallelism.data_parallel_replicate_degree=2"}},
      {2, by_tensor + Strings{"parallelism.fsdp_cpu_offload=true"}},
      {2, Strings{"parallelism.pipeline_parallel_degree=2"}}};
  if (!is_muon()) layouts.push_back({4, Strings{"parallelism.tensor_parallel_degree=2"} + kAllTokens});
  for (const auto& [ranks, more] : layouts) {
    RankThreads threads(ranks);
    const auto many = threads.run(job("many", 10) + kNoCheckpoint + more);
    for (const std::string& failure : threads.failures) ASSERT_EQ(failure, "") << join(more, " ");
    for (const Records& records : many)
      for (size_t step = 0; step < one.size(); ++step)
        EXPECT_NEAR(records.at(step).loss, one[step].loss, 1e-5) << join(more, " ") << ", step " << step;
  }
}

TEST_P(Optimizers, ARunThatMovesBetweenLayoutsHasTheBitsOfOneRank) {
  const Strings ordered{"training.reduction=ordered", "checkpoint.enable=true"};
  const Records one = TestRun(job("one", 6) + ordered).run();
  const Strings replicated{"parallelism.data_parallel_replicate_degree=2"};
  const Strings piped{"parallelism.pipeline_parallel_degree=2"};
  RankThreads(2).run([&](int) { return job("many", 6) + ordered + replicated; }, {}, 2);
  RankThreads(2).run([&](int) { return job("many", 6) + ordered + piped; }, {}, 4);
  TestRun last(job("many", 6) + ordered);
  const Records end = last.run();
  EXPECT_EQ(end.back().loss, one.back().loss);
  expect_same_tensors(saved_tensors(folder_ / "many", 6), saved_tensors(folder_ / "one", 6), GetParam());
}

TEST_P(Optimizers, ShardedStateMovesToOneRank) {
  const Strings by_tensor{"parallelism.fsdp_partition=by_tensor", "checkpoint.enable=true"};
  RankThreads(3).run([&](int) { return job("many", 4, {"training.global_batch_size=9"}) + by_tensor; }, {},
                     2);
  const auto two = saved_tensors(folder_ / "many", 2);
  const bool has_momentum =
      std::ranges::any_of(two, [](const auto& tensor) { return tensor.first.ends_with(".momentum_buffer"); });
  EXPECT_EQ(has_momentum, is_muon() || std::string_view(GetParam()) == "sgd");
  TestRun one(job("many", 4, {"training.global_batch_size=9"}) + Strings{"checkpoint.enable=true"});
  EXPECT_EQ(one.run().size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers, ::testing::Values("adamw", "lion", "sgd", "muon"),
                         [](const auto& name) { return name.param; });

TEST(OptimizerChange, AnotherOptimizerRefusesTheStateAndSaysSo) {
  const TempFolder folder;
  const auto job = [&](const std::string& name) {
    return odd_job(
        folder / "run", "llama", 4,
        {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6", "training.global_batch_size=8",
         "optimizer.name=" + name, "checkpoint.enable=true", "checkpoint.interval=2"});
  };
  TestRun(job("lion")).run(2);
  const std::string message = message_of<Error>([&] { TestRun(job("adamw")).run(); });
  EXPECT_CONTAINS(
      message, "is of another optimizer: its state is exp_avg, but optimizer.name needs exp_avg, exp_avg_sq");
}

TEST(Muon, RefusesMatricesThatAreDividedAndNamesTheRemedy) {
  const TempFolder folder;
  const auto failure = [&](const Strings& more) {
    RankThreads ranks(2);
    ranks.run([&](int) {
      return odd_job(folder / "run", "llama", 4,
                     {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6",
                      "training.global_batch_size=8", "optimizer.name=muon", "checkpoint.enable=false"}) +
             more;
    });
    return ranks.failures.at(0);
  };
  EXPECT_CONTAINS(failure({}), "set parallelism.fsdp_partition = \"by_tensor\"");
  EXPECT_CONTAINS(failure(Strings{"parallelism.tensor_parallel_degree=2"} + kAllTokens),
                  "set parallelism.tensor_parallel_degree = 1");
}

}  // namespace
}  // namespace stepforge::testing
