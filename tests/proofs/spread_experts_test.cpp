// SPDX-License-Identifier: Apache-2.0
// Apart from its steps in fp32 too, a run with spread experts does what one rank does: bf16, validation, samples.
#include "tests/catalog/all_families.h"
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

using SpreadRanks = std::pair<int, Strings>;  ///< a number of ranks and its layout

class SpreadExpertRuns : public ::testing::Test {
 protected:
  Strings job(const std::string& name, const Strings& more) const {
    return odd_job(folder_ / name, "qwen3_moe", 8,
                   {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=10", "training.seq_len=20",
                    "training.global_batch_size=4", "checkpoint.enable=false"}) +
           setting_overrides("qwen3_moe", /*windows=*/false) + more;
  }

  static std::vector<SpreadRanks> layouts() {
    const Strings spread{"parallelism.expert_parallel_degree=2"};
    const Strings tensor{"parallelism.tensor_parallel_degree=2"};
    return {{2, spread},
            {2, tensor + spread},
            {2, tensor + Strings{"parallelism.expert_tensor_parallel_degree=2"}},
            {4, spread + Strings{"parallelism.pipeline_parallel_degree=2"}}};
  }

  TempFolder folder_;
};

/// Experts that take rows of others change the losses of these first steps by 0.008.
TEST_F(SpreadExpertRuns, InBf16LossesStayWithinItsPrecision) {
  const Strings bf16{"precision.compute=bf16"};
  const Records one = TestRun(job("one", bf16)).run();
  for (const auto& [ranks, layout] : layouts()) {
    const auto many = RankThreads(ranks).run(job("many", bf16 + layout));
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_NEAR(many[0].at(step).loss, one[step].loss, 0.005) << join(layout, " ") << ", step " << step;
      for (const Records& records : many) EXPECT_EQ(records.at(step).loss, many[0][step].loss) << step;
    }
  }
}

TEST_F(SpreadExpertRuns, ValidationIsThatOfOneRank) {
  const Strings validated{"data.validation=[{format=\"synthetic\"}]", "data.synthetic_tokens=4800",
                          "validation.freq=2"};
  TestRun one(job("one", validated));
  one.run();
  const EvaluationResult expected = one.trainer().last_validation;
  EXPECT_GT(expected.valid_labels, 1000);
  for (const auto& [ranks, layout] : layouts()) {
    std::vector<EvaluationResult> results(static_cast<size_t>(ranks));
    RankThreads threads(ranks);
    threads.run(
        [&, &layout = layout](int) { return job("many", validated + layout); },
        [&](TestRun& run, int rank) {
          run.trainer().add_callback(std::make_unique<CallAtValidation>(
              [&results, rank](Trainer& at) { results[static_cast<size_t>(rank)] = at.last_validation; }));
        });
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(threads.failures[rank], "") << join(layout, " ");
      EXPECT_NEAR(results[rank].loss, expected.loss, 1e-5) << join(layout, " ");
      EXPECT_EQ(results[rank].loss, results[0].loss) << join(layout, " ");
      EXPECT_EQ(results[rank].valid_labels, expected.valid_labels) << join(layout, " ");
      EXPECT_EQ(results[rank].tokens, expected.tokens) << join(layout, " ");
    }
  }
}

TEST_F(SpreadExpertRuns, SampledTextIsThatOfOneRank) {
  const Strings sampling{"sampling.freq=2", "sampling.prompt=Once", "sampling.max_tokens=12"};
  TestRun(job("one", sampling)).run();
  const std::string expected = samples_of(folder_ / "one" / "log.txt");
  EXPECT_NE(expected, "");
  for (const auto& [ranks, layout] : layouts()) {
    RankThreads(ranks).run(job("many", sampling + layout));
    EXPECT_EQ(samples_of(folder_ / "many" / "log.txt"), expected) << join(layout, " ");
    EXPECT_EQ(samples_of(folder_ / "many" / "logs" / "rank-1.txt"), expected) << join(layout, " ");
    std::filesystem::remove_all(folder_ / "many");
  }
}

}  // namespace
}  // namespace stepforge::testing
