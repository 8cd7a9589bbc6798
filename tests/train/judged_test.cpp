// SPDX-License-Identifier: Apache-2.0
// Runs on answers that are judged alone: the baseline of a step, layouts, resume, validation.
#include <cmath>

#include "tests/train/judged_runs.h"

namespace stepforge::testing {
namespace {

/// The numbers of a run by step, from its file of metrics.
std::vector<double> logged_values(const TempFolder& folder, const std::string& run, const char* name) {
  std::vector<double> values;
  for (const MetricsRecord& record : read_jsonl(folder / run / "metrics.jsonl"))
    if (const auto value = record.find(name)) values.push_back(*value);
  return values;
}

TEST(JudgedRun, StartsAsItsReferenceAndLearnsWhatIsDesirable) {
  const TempFolder folder;
  for (const char* loss : {"kto", "apo_zero_unpaired"}) {
    TestRun run(judged_run(folder, loss, loss) + Strings{"data.validation_fraction=0.2", "validation.freq=3",
                                                         "training.steps=12", "preference.beta=0.5"});
    const Records records = run.run();
    EXPECT_NEAR(records.front().loss, 0.5, 1e-9) << loss;
    EXPECT_LT(records.back().loss, 0.45) << loss;
    const auto& figures = run.trainer().last_pairs.figures;
    EXPECT_GT(figures[0], 0.0) << "desirable answers";
    EXPECT_GT(figures[6], 0.0) << "undesirable ones";
    EXPECT_GT(figures[1] / figures[0], figures[2] / figures[6]) << loss << ": rewards";
    EXPECT_EQ(run.trainer().last_validation.loss, run.trainer().last_pairs.loss);
  }
}

TEST(JudgedRun, AnswersHaveTheirWeights) {
  const TempFolder folder;
  const Strings weights{"preference.desirable_weight=0", "preference.undesirable_weight=2",
                        "training.steps=1", "training.global_batch_size=8"};
  const double loss = TestRun(judged_run(folder, "run") + weights).run().front().loss;
  TestRun both(judged_run(folder, "both") + Strings{"training.steps=1", "training.global_batch_size=8"});
  both.run();
  const Batch batch = both.trainer().data.train->rows(0, 8);
  double undesirable = 0;
  for (const AnswerPair& answer : batch.pairs) undesirable += answer.answers[1].labels > 0 ? 1 : 0;
  EXPECT_GT(undesirable, 0);
  EXPECT_NEAR(loss, undesirable / static_cast<double>(batch.pairs.size()), 1e-9) << "2 x 0.5 of each";
}

/// The mean over the mismatched answers of all rows of a step, row by row.
double mean_of_mismatched(const Trainer& trainer, const std::vector<Batch>& batches) {
  double sum = 0.0;
  double answers = 0.0;
  for (const Batch& batch : batches) {
    const Batch other =
        trainer.data.train->rows(static_cast<int64_t>(batch.row_ids.front()), 1, AnswerChoice::mismatched);
    const at::Tensor losses = evaluate_batch(*trainer.evaluator, other, false).token_loss;
    const at::Tensor values = answer_log_probs(trainer.preferences.loss, other, losses);
    sum += (values - trainer.preferences.mismatched_training.of(other)).sum().item<double>();
    answers += static_cast<double>(other.pairs.size());
  }
  return sum / answers;
}

/// Without desirable answers the model leaves its reference downwards.
TEST(JudgedRun, TheBaselineIsTheMeanOfTheMismatchedAnswersOfTheStep) {
  const TempFolder folder;
  double lowest = 0.0;
  double highest = 0.0;
  for (const char* weight : {"1", "0"}) {
    const std::string name = format("run-{}", weight);
    TestRun run(judged_run(folder, name) + Strings{format("preference.desirable_weight={}", weight)});
    run.build();
    Trainer& trainer = run.trainer();
    double expected = 0.0;
    trainer.train_step->baseline = [&, usual = trainer.train_step->baseline](const auto& batches) {
      const double mean = mean_of_mismatched(trainer, batches);
      lowest = std::min(lowest, mean);
      highest = std::max(highest, mean);
      expected = std::max(0.0, mean);
      const double found = usual(batches);
      EXPECT_NEAR(found, expected, 1e-6);
      return found;
    };
    trainer.run();
    EXPECT_NEAR(logged_values(folder, name, "kl").back(), expected, 1e-6);
  }
  EXPECT_LT(lowest, -0.01) << "else the bound is not tried";
  EXPECT_GT(highest, 0.01);
}

/// The loss changes with it, and its gradient is that of the loss with the baseline as a constant.
TEST(JudgedRun, TheBaselineIsInTheLossAndHasNoGradient) {
  const TempFolder folder;
  const auto first = [&](const std::string& name, double baseline) {
    TestRun run(judged_run(folder, name) +
                Strings{"training.steps=1", "preference.undesirable_weight=0", "preference.beta=1"});
    run.build();
    run.trainer().train_step->baseline = [=](const std::vector<Batch>&) { return baseline; };
    run.trainer().run();
    return run.trainer().last_step;
  };
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const StepResult without = first("without", 0.0);
  const StepResult with = first("with", 2.0);
  EXPECT_NEAR(with.loss / without.loss, sigmoid(2.0) / sigmoid(0.0), 1e-9);
  EXPECT_NEAR(with.grad_norm / without.grad_norm, sigmoid(2.0) * sigmoid(-2.0) / 0.25, 1e-5);
}

TEST(JudgedRun, HasTheSameBitsOnAnyNumberOfRanks) {
  const TempFolder folder;
  const Strings ordered{"training.reduction=ordered"};
  const Records whole = numbers(TestRun(judged_run(folder, "whole") + ordered).run());
  EXPECT_EQ(moved_between_ranks(judged_run(folder, "moved") + ordered), whole);
  const std::vector<double> baselines = logged_values(folder, "whole", "kl");
  ASSERT_FALSE(baselines.empty());
  EXPECT_GT(*std::ranges::max_element(baselines), 0.0) << "else nothing is compared";
}

TEST(JudgedRun, EveryLayoutHasTheCurveOfOneRank) {
  const TempFolder folder;
  const Strings heads{"model.n_kv_heads=2"};
  const Records whole = TestRun(judged_run(folder, "whole") + heads).run();
  expect_curve(TestRun(judged_run(folder, "rows") + heads + Strings{"training.local_batch_size=4"}).run(),
               whole, "without accumulation", kPairCurve);
  for (const char* axis :
       {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2",
        "parallelism.pipeline_parallel_degree=2", "parallelism.data_parallel_shard_degree=2"})
    expect_curve(run_ranks(2, judged_run(folder, axis) + heads + Strings{axis}), whole, axis, kPairCurve);
}

TEST(JudgedRun, ReadsItsReferenceAgain) {
  const TempFolder folder;
  const Records whole = numbers(TestRun(judged_run(folder, "whole")).run());
  Records found = numbers(TestRun(judged_run(folder, "run")).run(2));
  for (const StepRecord& record : numbers(TestRun(judged_run(folder, "run")).run())) found.push_back(record);
  EXPECT_EQ(found, whole);
}

TEST(JudgedRun, LogsWhatTrlLogs) {
  const TempFolder folder;
  TestRun(judged_run(folder, "run") + Strings{"data.validation_fraction=0.2", "validation.freq=6"}).run();
  for (const char* name : {"rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen",
                           "logps/rejected", "kl", "validation_metrics/kl"})
    EXPECT_FALSE(logged_values(folder, "run", name).empty()) << name;
  EXPECT_TRUE(logged_values(folder, "run", "rewards/accuracies").empty());
}

TEST(JudgedRun, RefusesOtherDataAndSettings) {
  const TempFolder folder;
  const auto fault = [&](const Strings& settings) {
    return message_of<Error>([&] { TestRun(judged_run(folder, "run") + settings).build(); });
  };
  EXPECT_CONTAINS(fault({"preference.loss=dpo"}), "unpaired_preference", "kto");
  EXPECT_CONTAINS(fault({"preference.label_smoothing=0.1"}), "preference.loss");
  EXPECT_CONTAINS(message_of<Error>([&] { TestRun(pair_run(folder, "pairs", "kto")).build(); }),
                  "these are pairs of answers");
  EXPECT_CONTAINS(message_of<Error>([&] {
                    TestRun(pair_run(folder, "pairs") + Strings{"preference.desirable_weight=2"}).build();
                  }),
                  "preference.loss");
}

}  // namespace
}  // namespace stepforge::testing
