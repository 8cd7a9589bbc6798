// SPDX-License-Identifier: Apache-2.0
// Models with experts and losses of their routers: divided over ranks in every way they can be, they have the loss curve of
// one rank.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/metrics/jsonl.h"
#include "stepforge/metrics/names.h"
#include "tests/catalog/all_families.h"
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

const Strings kBalanced{"model.router_aux_loss_weight=0.05", "model.router_z_loss_weight=0.01"};
/// Rows that two ranks can divide.
const Strings kZLoss{"model.router_z_loss_weight=0.01", "training.seq_len=20"};

/// Of which a slice consists.
const Strings kWholeRows{"training.seq_len=20", "training.local_batch_size=2"};

Strings spread(int ranks) {
  return {format("parallelism.expert_parallel_degree={}", ranks)};
}
const Strings kSpread2 = spread(2);

class ExpertTraining : public ::testing::TestWithParam<std::string> {
 protected:
  static Strings job(const std::filesystem::path& run_dir) {
    return odd_job(
        run_dir, GetParam(), 20,
        Strings{"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=10",
                "training.global_batch_size=4"} +
            setting_overrides(GetParam(), /*windows=*/false) +
            (has_setting(find_family(GetParam()), "dense_layers") ? Strings{"model.dense_layers=[1]"}
                                                                  : Strings{}) +
            (has_setting(find_family(GetParam()), "first_dense_layers")
                 ? Strings{"model.first_dense_layers=1"}
                 : Strings{}) +
            (GetParam() == "deepseek_v3" ? Strings{"model.router_bias_update_speed=0.001"} : Strings{}));
  }

  /// Tensor parallelism, of attention too if it can be divided.
  static Strings divided() {
    return Strings{"parallelism.tensor_parallel_degree=2"} +
           (needs_whole_attention(GetParam())
                ? Strings{"parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"}
                : Strings{});
  }

  /// `layout`: what the ranks have and one rank has not.
  static void compare(int ranks, const Strings& both, const Strings& layout) {
    const TempFolder folder;
    const std::string name = format("{} ranks, {} {}", ranks, join(both, " "), join(layout, " "));
    const Records one = TestRun(job(folder / "one") + kNoCheckpoint + both).run();
    const auto many = RankThreads(ranks).run(job(folder / "many") + kNoCheckpoint + both + layout);
    ASSERT_EQ(one.size(), 20U);
    expect_near(many, one, 0, name);
  }

  /// `first`: the step of `one` that the others begin with.
  static void expect_near(const std::vector<Records>& many, const Records& one, size_t first,
                          const std::string& name) {
    for (const Records& records : many) {
      ASSERT_EQ(records.size(), one.size() - first) << name;
      for (size_t step = 0; step < records.size(); ++step) {
        const StepRecord& expected = one[first + step];
        EXPECT_NEAR(records[step].loss, expected.loss, 1e-5) << name << ", step " << first + step;
        EXPECT_NEAR(records[step].grad_norm, expected.grad_norm, 1e-4 * expected.grad_norm) << name;
        EXPECT_EQ(records[step].loss, many[0][step].loss) << name;
        EXPECT_EQ(records[step].grad_norm, many[0][step].grad_norm) << name;
      }
    }
  }
};

// Finds what went wrong in Megatron-LM#5798, #5696 and AutoModel#3359 (losses of routers depend on micro-batches).
TEST_P(ExpertTraining, LossesOfShardsAndReplicasAreThoseOfOneRank) {
  compare(2, kBalanced, {});
  compare(4, kBalanced + kRecomputed, {"parallelism.data_parallel_replicate_degree=2"});
  compare(2, kBalanced + Strings{"training.local_batch_size=2"}, kByDim);
  compare(1, kBalanced, {"training.local_batch_size=4"});
  compare(2, kBalanced, {"training.local_batch_size=2"});
}

TEST_P(ExpertTraining, LossesOfPipelinesAreThoseOfOneRank) {
  const Strings two_stages{"parallelism.pipeline_parallel_degree=2"};
  compare(2, kBalanced, two_stages);
  compare(4, kBalanced + kRecomputed,
          two_stages + Strings{"parallelism.pipeline_parallel_schedule=ZBVZeroBubble"});
}

// Finds what went wrong in torchtitan#4054 (before whole experts, gradients lose their sum over tensor parallelism) and
// Megatron-LM#7452 (a sum in place over ranks changes the counts that the balancing loss reads later).
TEST_P(ExpertTraining, LossesOfDividedAttentionBesideWholeExpertsAreThoseOfOneRank) {
  compare(2, kBalanced, divided() + kAllTokens);
  compare(4, kBalanced + kRegions, divided() + kAllTokens);
}

// Finds what went wrong in torchtitan#2387, #2416, Megatron-LM#599, #619 (gradients of routers not summed over tensor
// parallelism).
TEST_P(ExpertTraining, LossesOfExpertsThatTakeSlicesOfTheTokensAreThoseOfOneRank) {
  compare(2, kZLoss, divided());
  compare(2, kZLoss + kRecomputed, divided() + kAsync);
  compare(4, kZLoss + kRegions, divided() + kByDim);
  compare(4, kBalanced + kWholeRows, divided() + Strings{"parallelism.data_parallel_replicate_degree=2"});
}

/// The groups of experts are in tensor parallelism, or go beyond it.
TEST_P(ExpertTraining, LossesOfSpreadExpertsThatTakeSlicesOfTheTokensAreThoseOfOneRank) {
  compare(2, kZLoss, divided() + kSpread2);
  compare(2, kBalanced + kWholeRows + kRecomputed, divided() + kSpread2);
  compare(4, kZLoss, divided() + kSpread2 + kOffloaded);
  compare(4, kZLoss + kRegions + Strings{"model.n_experts=12"}, divided() + spread(4));
  compare(4, kZLoss + kRecomputed,
          divided() + kSpread2 + Strings{"parallelism.data_parallel_replicate_degree=2"});
  compare(4, kZLoss + kRecomputed,
          divided() + kSpread2 +
              Strings{"parallelism.pipeline_parallel_degree=2",
                      "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"});
  if (has_latents(GetParam())) return;
  compare(4, kZLoss, divided() + spread(2) + Strings{"parallelism.context_parallel_degree=2"});
}

TEST_P(ExpertTraining, LossesOfPartsOfRowsAreThoseOfOneRank) {
  if (has_latents(GetParam())) GTEST_SKIP() << "latent attention is not divided over tokens";
  compare(2, kZLoss, {"parallelism.context_parallel_degree=2"});
  compare(4, kZLoss + kRecomputed, kUlysses + Strings{"parallelism.context_parallel_degree=2"});
}

/// Finds what went wrong in Megatron-LM#5047, #1652, #3768 and #3769 (losses of routers scale with the number of ranks).
TEST_P(ExpertTraining, LossesOfSpreadExpertsAreThoseOfOneRank) {
  compare(2, kBalanced, kSpread2);
  compare(3, kBalanced + Strings{"training.global_batch_size=6"}, spread(3));
  compare(4, kBalanced + kRecomputed + Strings{"model.n_experts=12"}, spread(4));
  compare(2, kBalanced + Strings{"training.local_batch_size=2"}, kSpread2 + kOffloaded);
  compare(2, kBalanced + kRegions, kSpread2 + Strings{"training.local_batch_size=2"});
}

TEST_P(ExpertTraining, LossesOfSpreadExpertsWhoseTokensAreGatheredAreThoseOfOneRank) {
  const Strings gathered = kSpread2 + Strings{"parallelism.expert_parallel_dispatcher=allgather"};
  compare(2, kBalanced, gathered);
  compare(4, kBalanced + kRecomputed, gathered + Strings{"parallelism.data_parallel_replicate_degree=2"});
  compare(2, kZLoss, divided() + gathered);
  compare(4, kBalanced, gathered + Strings{"parallelism.pipeline_parallel_degree=2"});
}

TEST_P(ExpertTraining, LossesOfSpreadExpertsThatAreShardedAndReplicatedAreThoseOfOneRank) {
  compare(4, kBalanced, kSpread2);
  compare(4, kBalanced, kSpread2 + kByDim);
  compare(4, kBalanced, kSpread2 + Strings{"parallelism.data_parallel_replicate_degree=2"});
  if (has_latents(GetParam())) return;
  compare(4, kZLoss, kSpread2 + Strings{"parallelism.context_parallel_degree=2"});
  compare(2, kZLoss + kRecomputed, kSpread2 + Strings{"parallelism.context_parallel_degree=2"});
}

TEST_P(ExpertTraining, LossesOfExpertsThatAreDividedAreThoseOfOneRank) {
  const Strings parts = divided() + Strings{"parallelism.expert_tensor_parallel_degree=2"};
  compare(2, kZLoss, parts);
  compare(2, kBalanced + kWholeRows + kRecomputed, parts);
  compare(4, kZLoss, parts + kSpread2 + kOffloaded);
  compare(4, kZLoss + kRegions, parts + kByDim);
}

TEST_P(ExpertTraining, LossesOfSpreadExpertsInPipelinesAreThoseOfOneRank) {
  const Strings two_stages = kSpread2 + Strings{"parallelism.pipeline_parallel_degree=2"};
  compare(4, kBalanced, two_stages);
  compare(4, kBalanced + kRecomputed,
          two_stages + Strings{"parallelism.pipeline_parallel_schedule=ZBVZeroBubble"});
}

/// Two micro-batches that take turns are added in the same order.
TEST_P(ExpertTraining, TurnsOfMicroBatchesChangeNoBit) {
  const auto compare_turns = [](int ranks, const Strings& args) {
    const TempFolder folder;
    const auto run = [&](const std::string& name, const Strings& more) {
      return RankThreads(ranks).run(job(folder / name) + kNoCheckpoint + kBalanced + kSpread2 + args + more,
                                    4);
    };
    const auto plain = run("plain", {});
    const auto turns = run("turns", {"parallelism.expert_parallel_overlap=true"});
    ASSERT_EQ(turns.front().size(), 4U);
    for (size_t step = 0; step < 4; ++step) {
      EXPECT_EQ(turns.front()[step].loss, plain.front()[step].loss) << join(args, " ") << ", step " << step;
      EXPECT_EQ(turns.front()[step].grad_norm, plain.front()[step].grad_norm) << join(args, " ");
    }
  };
  compare_turns(2, {});
  compare_turns(2, kRecomputed + Strings{"training.global_batch_size=6"});
  compare_turns(4, {"parallelism.pipeline_parallel_degree=2", "training.global_batch_size=8",
                    "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"});
}

TEST_P(ExpertTraining, ARunOfSpreadExpertsIsResumedInAnyOtherLayout) {
  const TempFolder folder;
  const Strings saved{"checkpoint.enable=true", "checkpoint.interval=5"};
  const Strings common = kZLoss + saved;
  const auto resumed = [&](int ranks, int64_t until, const Strings& layout) {
    return RankThreads(ranks).run(job(folder / "many") + common + layout, until);
  };
  const Records one = TestRun(job(folder / "one") + kNoCheckpoint + kZLoss).run();
  resumed(2, 5, kSpread2);
  expect_near(resumed(1, 10, {}), Records(one.begin(), one.begin() + 10), 5, "on one rank");
  resumed(4, 15, divided() + kSpread2 + Strings{"parallelism.pipeline_parallel_degree=2"});
  expect_near(resumed(2, 20, kSpread2), one, 15, "on two ranks");
}

TEST_P(ExpertTraining, AResumedRunOnOtherRanksContinuesTheCurve) {
  const TempFolder folder;
  const Strings saved{"checkpoint.enable=true", "checkpoint.interval=10"};
  const Records one = TestRun(job(folder / "one") + kNoCheckpoint + kBalanced).run();
  RankThreads(2).run(job(folder / "many") + saved + kBalanced, 10);
  const auto rest = RankThreads(4).run(job(folder / "many") + saved + kBalanced +
                                       Strings{"parallelism.data_parallel_replicate_degree=2"});
  expect_near(rest, one, 10, "resumed");
}

/// The losses of routers change gradients, not the reported loss.
TEST_P(ExpertTraining, LossesOfRoutersAreNotPartOfTheReportedLoss) {
  const TempFolder folder;
  const Records plain = TestRun(job(folder / "plain") + kNoCheckpoint).run(1);
  const Records balanced = TestRun(job(folder / "balanced") + kNoCheckpoint + kBalanced).run(1);
  EXPECT_EQ(balanced.at(0).loss, plain.at(0).loss);
  EXPECT_NE(balanced.at(0).grad_norm, plain.at(0).grad_norm);
}

TEST_P(ExpertTraining, LoggedLossesOfRoutersAreThoseOfOneRank) {
  const TempFolder folder;
  const auto logged = [&](const std::string& name, int ranks, const Strings& more) {
    const Strings args = job(folder / name) + kNoCheckpoint + more;
    RankThreads(ranks).run(args, 3);
    return read_jsonl(folder / name / "metrics.jsonl");
  };
  const Strings balanced = kBalanced + Strings{"training.seq_len=20"};
  const auto one = logged("one", 1, balanced);
  ASSERT_EQ(one.size(), 3U);
  const std::vector<Strings> layouts = {{},
                                        {"parallelism.pipeline_parallel_degree=2"},
                                        divided() + kAllTokens,
                                        divided() + Strings{"training.local_batch_size=2"},
                                        {"activation_checkpoint.mode=full", "training.local_batch_size=2"}};
  for (size_t layout = 0; layout < layouts.size(); ++layout) {
    const auto many = logged(format("layout{}", layout), 2, balanced + layouts[layout]);
    ASSERT_EQ(many.size(), one.size());
    for (size_t step = 0; step < one.size(); ++step) {
      for (const std::string_view name : {metric::router_balance, metric::router_z}) {
        const double expected = *one[step].find(name);
        EXPECT_GT(expected, 0.5) << name;
        EXPECT_NEAR(*many[step].find(name), expected, 1e-5 * expected) << name << ", layout " << layout;
      }
    }
  }
  EXPECT_EQ(logged("plain", 1, {}).at(0).find(metric::router_balance), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertTraining,
                         ::testing::Values("qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v2", "deepseek_v3",
                                           "gpt_oss"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepforge::testing
