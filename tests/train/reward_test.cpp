// SPDX-License-Identifier: Apache-2.0
// Runs that train reward models: layouts, where they start from, what they leave.
#include <algorithm>
#include <cmath>
#include <set>

#include "stepforge/catalog/hf_config.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "tests/train/pair_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

Strings reward_run(const TempFolder& folder, const std::string& name, const Strings& more = {}) {
  return pair_run(folder, name, "reward") + more;
}

/// A Hugging Face folder of a model with a vocabulary.
fs::path model_with_vocabulary(const TempFolder& folder) {
  TestRun(trainer_run(folder / "base") + Strings{"training.steps=2", "checkpoint.last_save_in_hf=true"})
      .run();
  return folder / "base" / "hf" / "step-2";
}

at::Tensor score_of(Trainer& trainer) {
  for (size_t u = 0; u < trainer.store->size(); ++u) {
    const UnitStore& unit = trainer.store->unit(u);
    for (size_t i = 0; i < unit.spec().parameters.size(); ++i)
      if (unit.spec().parameters[i].tag == ParameterTag::score) return unit.master_view(i).clone();
  }
  throw Error("the model has no score");
}

TEST(RewardRun, StartsAtLogTwoWithoutAScoreAndLearns) {
  const TempFolder folder;
  const Records records = TestRun(reward_run(folder, "run", {"model.score_init_std=0"})).run();
  EXPECT_NEAR(records.front().loss, std::log(2.0), 1e-12);
  EXPECT_LT(records.back().loss, 0.9 * std::log(2.0));
}

TEST(RewardRun, AMarginAndCenteredScoresChangeTheLoss) {
  const TempFolder folder;
  const Strings zero{"model.score_init_std=0", "training.steps=1", "checkpoint.enable=false"};
  EXPECT_NEAR(TestRun(reward_run(folder, "margin", zero + Strings{"preference.margin=1"})).run().front().loss,
              std::log1p(std::exp(1.0)), 1e-12);
  const Strings three{"training.steps=3", "checkpoint.enable=false"};
  const Records plain = TestRun(reward_run(folder, "plain", three)).run();
  const Records centered =
      TestRun(reward_run(folder, "centered", three + Strings{"preference.center_weight=0.5"})).run();
  EXPECT_GT(centered.front().loss, plain.front().loss);
  EXPECT_NE(centered.front().grad_norm, plain.front().grad_norm);
}

TEST(RewardRun, HasTheSameBitsOnAnyNumberOfRanks) {
  const TempFolder folder;
  const Strings ordered{"training.reduction=ordered"};
  const Records whole = numbers(TestRun(reward_run(folder, "whole", ordered)).run());
  EXPECT_EQ(moved_between_ranks(reward_run(folder, "moved", ordered)), whole);
}

TEST(RewardRun, EveryLayoutHasTheCurveOfOneRank) {
  const TempFolder folder;
  const Strings heads{"model.n_kv_heads=2", "checkpoint.enable=false"};
  const Records whole = TestRun(reward_run(folder, "whole", heads)).run();
  for (const Strings& axis :
       {Strings{"parallelism.tensor_parallel_degree=2", "parallelism.enable_sequence_parallel=false"},
        Strings{"parallelism.tensor_parallel_degree=2", "parallelism.enable_sequence_parallel=true"},
        Strings{"parallelism.context_parallel_degree=2"}, Strings{"parallelism.pipeline_parallel_degree=2"},
        Strings{"parallelism.data_parallel_shard_degree=2"}}) {
    const std::string name = axis.front() + axis.back();
    expect_curve(run_ranks(2, reward_run(folder, name, heads + axis)), whole, name, kPairCurve);
  }
}

TEST(RewardRun, TakesAllButTheScoreFromAModelWithAVocabularyAndBecomesAClassifier) {
  const TempFolder folder;
  const fs::path base = model_with_vocabulary(folder);
  TestRun first(reward_run(folder, "first",
                           {format("model.from={}", base.string()), "checkpoint.last_save_in_hf=true"}));
  first.run();
  EXPECT_CONTAINS(first.log_text(), "has no score.weight", "lm_head.weight");
  const fs::path exported = folder / "first" / "hf" / "step-6";
  EXPECT_TRUE(hf_model_config(exported).scores());
  EXPECT_EQ(open_hf_weights(exported).find("lm_head.weight"), nullptr);

  TestRun second(reward_run(folder, "second", {format("model.from={}", exported.string())}));
  EXPECT_TRUE(at::equal(score_of(second.build()), score_of(first.trainer())));
  EXPECT_EQ(second.log_text().find("has no score.weight"), std::string::npos);
}

TEST(RewardRun, TrainsTheScoreBesideAdapters) {
  const TempFolder folder;
  const fs::path base = model_with_vocabulary(folder);
  const Strings lora{format("checkpoint.initial_load_path={}", base.string()), "adapter.type=lora",
                     "adapter.rank=4"};
  TestRun run(reward_run(folder, "run", lora));
  at::Tensor before;
  run.trainer().add_callback(
      std::make_unique<CallAtStart>([&](Trainer& trainer) { before = score_of(trainer); }));
  const Records records = run.run();
  EXPECT_LT(records.back().loss, records.front().loss);
  EXPECT_FALSE(at::equal(score_of(run.trainer()), before));
  int scores = 0;
  for (const std::string& name : stored_tensors(folder / "run" / "checkpoint" / "step-6").names()) {
    const bool of_score = name == "score.weight" || name.find("score.weight.") != std::string::npos;
    scores += of_score ? 1 : 0;
    EXPECT_TRUE(of_score || name.find("lora_") != std::string::npos) << name;
  }
  EXPECT_GT(scores, 0);
  TestRun(reward_run(folder, "resumed", lora)).run(4);
  const Records resumed = TestRun(reward_run(folder, "resumed", lora)).run();
  EXPECT_EQ(resumed.front().step, 5);
  EXPECT_EQ(resumed.back().bits, records.back().bits);
}

TEST(RewardRun, LogsRewardsOfTrainingAndValidation) {
  const TempFolder folder;
  TestRun run(reward_run(folder, "run", {"data.validation_fraction=0.2", "validation.freq=3"}));
  run.run();
  const auto& figures = run.trainer().last_pairs.figures;
  EXPECT_GT(figures[0], 4.0) << "pairs";
  EXPECT_GT(figures[1], figures[2]) << "rewards";
  EXPECT_EQ(run.trainer().last_validation.loss, run.trainer().last_pairs.loss);
  std::set<std::string> names;
  for (const MetricsRecord& record : read_jsonl(folder / "run" / "metrics.jsonl"))
    for (const auto& [name, value] : record.values) names.insert(name);
  for (const char* name : {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("logps/chosen"));
}

TEST(RewardRun, ThePlanCountsItsMemory) {
  const TempFolder folder;
  TestRun run(reward_run(folder, "run"));
  expect_planned_memory(run);
}

TEST(RewardRun, RefusesWhatARewardModelDoesNotDo) {
  const TempFolder folder;
  const auto fault = [](const Strings& args) { return message_of<Error>([&] { TestRun(args).build(); }); };
  EXPECT_CONTAINS(fault(reward_run(folder, "run", {"sampling.freq=1"})), "writes no text");
  EXPECT_CONTAINS(fault(reward_run(folder, "run", {"model.head=vocabulary"})), "in place of a vocabulary");
  EXPECT_CONTAINS(fault(reward_run(folder, "run", {"preference.beta=0.5"})), "preference.beta");
  EXPECT_CONTAINS(fault(reward_run(folder, "run", {"training.loss_chunk=64"})), "training.loss_chunk");
  EXPECT_CONTAINS(fault(pair_run(folder, "run", "dpo") + Strings{"model.head=score"}),
                  "learns from pairs of answers only");
  EXPECT_CONTAINS(fault(pair_run(folder, "run", "dpo") + Strings{"preference.center_weight=1"}),
                  "preference.center_weight");
  const fs::path base = model_with_vocabulary(folder);
  EXPECT_CONTAINS(fault(reward_run(
                      folder, "frozen",
                      {format("checkpoint.initial_load_path={}", base.string()), "model.freeze=[\"head\"]"})),
                  "model.freeze matches the score");
}

}  // namespace
}  // namespace stepforge::testing
