// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction over several ranks: with exact arithmetic the bits of one rank, otherwise its losses, of each depth too.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/metrics/jsonl.h"
#include "stepforge/metrics/names.h"
#include "tests/catalog/all_families.h"
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/odd_job.h"
#include "tests/proofs/pipeline_choices.h"

namespace stepforge::testing {
namespace {

struct MtpCase {
  int ranks;
  Strings args;
};

Strings mtp_stages(const PipelineCase& pipeline) {
  return overrides_of(pipeline) +
         Strings{"parallelism.pipeline_parallel_layers_per_stage=0", "model.n_layers=6"};
}

Strings mtp_spread(int ranks) {
  return {format("parallelism.expert_parallel_degree={}", ranks)};
}

const Strings kMtpContext{"parallelism.context_parallel_degree=2"};
const Strings kMtpTensor{"parallelism.tensor_parallel_degree=2"};

/// Of a later token, the embedding is made by the rank that has the token itself, also where a part of a row or a slice of
/// the tokens ends.
std::vector<MtpCase> mtp_cases(ExactModel model) {
  const Strings two_stages = mtp_stages({"1F1B", 2, 1});
  if (model == ExactModel::mtp_experts)
    return {{1, {"training.local_batch_size=4", "activation_checkpoint.mode=full"}},
            {2, overrides_of({2, 1, 2, 1, {}}) + kAllTokens},
            {2, mtp_spread(2)},
            {4, mtp_spread(2) + Strings{"activation_checkpoint.mode=full"}},
            {4, mtp_spread(2) + mtp_stages({"ZBVZeroBubble", 2, 2}) +
                    Strings{"parallelism.expert_parallel_overlap=true"}},
            {2, kMtpTensor + mtp_spread(2)},
            {6, kMtpTensor + mtp_spread(6)},
            {4, kMtpTensor + mtp_spread(2) + kMtpContext},
            {4, kMtpTensor + Strings{"parallelism.expert_tensor_parallel_degree=2"} + mtp_spread(2)},
            {4, kMtpTensor + mtp_spread(2) + mtp_stages({"ZBVZeroBubble", 2, 2})}};
  return {
      {1, {"training.local_batch_size=4", "activation_checkpoint.mode=full"}},
      {1, {"training.reduction=ordered"}},
      {2, {"parallelism.fsdp_partition=by_tensor", "activation_checkpoint.mode=every_n"}},
      {3, {"parallelism.fsdp_reduce_each_micro_batch=true"}},
      {4, overrides_of({4, 1, 1, 2, {}})},
      {4, overrides_of({4, 1, 2, 1, {}}) + kAllTokens},
      {2, {"parallelism.fsdp_cpu_offload=true"}},
      {2, two_stages},
      {4, mtp_stages({"Interleaved1F1B", 2, 2}) + Strings{"activation_checkpoint.mode=full"}},
      {2, mtp_stages({"ZBVZeroBubble", 2, 2}) + Strings{"training.local_batch_size=2"}},
      {1, mtp_stages({"ZBVZeroBubble", 1, 2})},
      {2, kMtpContext},
      {4, Strings{"parallelism.context_parallel_degree=4", "parallelism.context_parallel_load_balance=none"}},
      {4, Strings{"parallelism.context_parallel_degree=4"} + kRing},
      {4, kMtpContext + two_stages},
      {2, kMtpTensor},
      {2, kMtpTensor + kAsync + Strings{"activation_checkpoint.mode=full"}},
      {4, kMtpTensor + kMtpContext + kUlysses},
      {4, kMtpTensor + mtp_stages({"ZBVZeroBubble", 2, 2})},
      {4, kMtpTensor + kOffloaded}};
}

using ExactMtp = ExactRuns;

TEST_P(ExactMtp, EveryLayoutGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const Strings job{"training.seq_len=16", "model.n_layers=6"};
  const WholeRun one = layout_on_one(folder / "one", job);
  for (const MtpCase& layout : mtp_cases(GetParam()))
    expect_bits_of(one, folder / "many", layout.ranks, job + layout.args);
}

INSTANTIATE_TEST_SUITE_P(Models, ExactMtp, ::testing::Values(ExactModel::mtp, ExactModel::mtp_experts),
                         [](const auto& model) {
                           return model.param == ExactModel::mtp ? "mtp" : "experts";
                         });

/// Two depths, in rows of documents that are shorter than a depth, or longer.
Strings mtp_job(const std::filesystem::path& run_dir) {
  return odd_job(run_dir, "deepseek_v3", 20,
                 setting_overrides("deepseek_v3") +
                     Strings{"training.seq_len=20", "model.first_dense_layers=1", "model.n_mtp_layers=2",
                             "training.global_batch_size=4", "model.router_bias_update_speed=0.001",
                             "model.router_z_loss_weight=0.01", "model.router_aux_loss_weight=0.05"});
}

struct Curve {
  Records steps;
  std::vector<std::pair<double, double>> depths;  ///< the losses of both, at each step
};

Curve run_of(const std::filesystem::path& run_dir, int ranks, const Strings& more,
             std::optional<int64_t> last = {}) {
  RankThreads threads(ranks);
  Curve curve{threads.run(mtp_job(run_dir) + more, last).at(0), {}};
  for (const MetricsRecord& record : read_jsonl(run_dir / "metrics.jsonl"))
    if (record.kind == "train")
      curve.depths.emplace_back(record.find("loss_metrics/mtp_1").value_or(-1),
                                record.find("loss_metrics/mtp_2").value_or(-1));
  return curve;
}

void expect_near(const Curve& actual, const Curve& expected, size_t first, const std::string& name) {
  ASSERT_EQ(actual.steps.size(), expected.steps.size() - first) << name;
  for (size_t step = 0; step < actual.steps.size(); ++step) {
    const StepRecord& one = expected.steps[first + step];
    EXPECT_NEAR(actual.steps[step].loss, one.loss, 1e-5) << name << ", step " << step;
    EXPECT_NEAR(actual.steps[step].grad_norm, one.grad_norm, 1e-4 * one.grad_norm) << name;
  }
  ASSERT_EQ(actual.depths.size(), expected.depths.size()) << name;
  for (size_t step = 0; step < expected.depths.size(); ++step) {
    EXPECT_NEAR(actual.depths[step].first, expected.depths[step].first, 1e-5) << name << ", step " << step;
    EXPECT_NEAR(actual.depths[step].second, expected.depths[step].second, 1e-5) << name << ", step " << step;
  }
}

// Finds what went wrong in Megatron-LM#7452, #2417, #3159 and #1532 (the loss of a depth divided by labels of one rank).
const Strings kMtpDivided =
    kMtpTensor + Strings{"parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"};
/// Of which a slice consists.
const Strings kMtpRows{"training.local_batch_size=2"};

TEST(MtpTraining, LossesOfEveryLayoutAreThoseOfOneRank) {
  const TempFolder folder;
  const Curve one = run_of(folder / "one", 1, kNoCheckpoint);
  ASSERT_EQ(one.depths.size(), 20U);
  EXPECT_LT(one.depths.back().first, one.depths.front().first);
  const std::vector<MtpCase> cases = {
      {1, {"training.local_batch_size=4"}},
      {1, {"activation_checkpoint.mode=full"}},
      {1, {"activation_checkpoint.mode=regions", "activation_checkpoint.regions=[\"attention\",\"mlp\"]"}},
      {2, {}},
      {4, {"parallelism.data_parallel_replicate_degree=2"}},
      {2, kByDim},
      {2, {"parallelism.expert_parallel_degree=2"}},
      {2, {"parallelism.pipeline_parallel_degree=2"}},
      {4,
       {"parallelism.pipeline_parallel_degree=2", "parallelism.expert_parallel_degree=2",
        "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}},
      {2, kAllTokens + kMtpDivided},
      {2, kMtpDivided + kMtpRows},
      {4, kMtpDivided + kMtpRows + kAsync + Strings{"activation_checkpoint.mode=full"}},
      {2, kMtpDivided + kMtpRows + mtp_spread(2)},
      {4, kMtpDivided + kMtpRows + mtp_spread(2)},
      {4, kMtpDivided + kMtpRows + mtp_spread(2) +
              Strings{"parallelism.pipeline_parallel_degree=2",
                      "parallelism.pipeline_parallel_microbatch_size=2"}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = format("{} ranks, {}", cases[i].ranks, join(cases[i].args, " "));
    expect_near(run_of(folder / format("case{}", i), cases[i].ranks, kNoCheckpoint + cases[i].args), one, 0,
                name);
  }
}

TEST(MtpTraining, AResumedRunOnOtherRanksContinuesTheCurve) {
  const TempFolder folder;
  const Curve one = run_of(folder / "one", 1, kNoCheckpoint);
  const Strings saved{"checkpoint.enable=true", "checkpoint.interval=10"};
  run_of(folder / "many", 2, saved, 10);
  expect_near(run_of(folder / "many", 1, saved), one, 10, "resumed");
}

/// Only training has values of later tokens; what passes between stages is counted.
TEST(MtpTraining, ValidationInAPipelineIsThatOfOneRank) {
  const TempFolder folder;
  const Strings validated = kNoCheckpoint + Strings{"data.validation=[{format=\"synthetic\"}]",
                                                    "data.synthetic_tokens=4000", "validation.freq=2"};
  TestRun one(mtp_job(folder / "one") + validated);
  one.run(2);
  const EvaluationResult expected = one.trainer().last_validation;
  EXPECT_GT(expected.valid_labels, 1000);
  RankThreads threads(2);
  std::vector<EvaluationResult> results(2);
  threads.run(
      [&](int) {
        return mtp_job(folder / "many") + validated + Strings{"parallelism.pipeline_parallel_degree=2"};
      },
      [&](TestRun& run, int rank) {
        run.trainer().add_callback(std::make_unique<CallAtValidation>(
            [&results, rank](Trainer& at) { results[static_cast<size_t>(rank)] = at.last_validation; }));
      },
      2);
  for (const EvaluationResult& result : results) {
    EXPECT_NEAR(result.loss, expected.loss, 1e-5);
    EXPECT_EQ(result.valid_labels, expected.valid_labels);
  }
}

/// The loss of the further depths changes gradients, by its weight, and not the reported loss.
TEST(MtpTraining, LossesOfFurtherDepthsAreNotPartOfTheReportedLoss) {
  const TempFolder folder;
  const auto first = [&](const std::string& name, const std::string& more) {
    return run_of(folder / name, 1, kNoCheckpoint + Strings{more}, 1).steps.at(0);
  };
  const StepRecord usual = first("usual", "model.mtp_loss_weight=0.3");
  const StepRecord heavy = first("heavy", "model.mtp_loss_weight=3");
  const StepRecord none = first("none", "model.n_mtp_layers=0");
  EXPECT_EQ(usual.loss, heavy.loss);
  EXPECT_EQ(usual.loss, none.loss);
  EXPECT_NE(usual.grad_norm, heavy.grad_norm);
  EXPECT_NE(usual.grad_norm, none.grad_norm);
}

}  // namespace
}  // namespace stepforge::testing
