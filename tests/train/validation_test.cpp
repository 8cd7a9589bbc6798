// SPDX-License-Identifier: Apache-2.0
// Validation and samples during training.
#include <cmath>
#include <numbers>
#include <numeric>

#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// Each line of the text is a document; a fifth of them are held out.
Strings on_text(const TempFolder& folder) {
  write_text(folder / "tale.txt", some_text(120));
  return trainer_run(folder / "run") +
         Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                 "data.document=line", "data.validation_fraction=0.2", "validation.freq=4"};
}

TEST(Validation, IsTheMeanOverAllHeldOutLabels) {
  const TempFolder folder;
  TestRun run(on_text(folder));
  run.run();
  const Trainer& trainer = run.trainer();
  const RowStream& rows = *trainer.data.validation;
  double sum = 0.0;
  int64_t labels = 0;
  for (int64_t row = 0; row < *rows.total_rows(); ++row) {
    const BatchLoss result = evaluate_batch(*trainer.evaluator, rows.rows(row, 1), /*with_logits=*/false);
    const float* losses = result.token_loss.data_ptr<float>();
    sum = std::accumulate(losses, losses + result.token_loss.numel(), sum);
    labels += rows.rows(row, 1).valid_labels;
  }
  EXPECT_EQ(trainer.last_validation.valid_labels, labels);
  EXPECT_NEAR(trainer.last_validation.loss, sum / static_cast<double>(labels), 1e-6);
  EXPECT_EQ(trainer.last_validation.tokens, *rows.total_rows() * 32);
}

TEST(Validation, BitsPerByteAreTheBitsOfAllLabelsOverAllBytes) {
  const TempFolder folder;
  TestRun run(on_text(folder) + Strings{"data.packing=best_fit"});
  run.run();
  const EvaluationResult& result = run.trainer().last_validation;
  const double bytes_per_token = *run.trainer().data.validation->bytes_per_token();
  // Nobody predicts the first token of a document, so it has no bits, but its bytes count.
  const double bits = result.loss / std::numbers::ln2 * static_cast<double>(result.valid_labels);
  const auto bytes = static_cast<double>(*run.trainer().data.validation->sources()[0].source->text_bytes());
  EXPECT_NEAR(result.bits_per_byte, bits / bytes, 1e-3);
  EXPECT_DOUBLE_EQ(result.bits_per_byte, result.loss / std::numbers::ln2 / bytes_per_token);
  EXPECT_DOUBLE_EQ(result.perplexity, std::exp(result.loss));
}

TEST(Validation, WithAStepLimitUsesTheFirstBatches) {
  const TempFolder folder;
  TestRun run(on_text(folder) + Strings{"validation.steps=3"});
  run.run();
  EXPECT_EQ(run.trainer().last_validation.tokens, 3 * 2 * 32);
}

TEST(Validation, ChangesNeitherWeightsNorTheRestOfTheRun) {
  const TempFolder folder;
  const auto with = TestRun(on_text(folder) + Strings{"model.dropout=0.1"}).run();
  const auto without = TestRun(on_text(folder) + Strings{"model.dropout=0.1", "validation.freq=0",
                                                         format("run_dir={}", (folder / "other").string())})
                           .run();
  EXPECT_EQ(with, without);
}

TEST(Validation, UsesNoDropout) {
  const TempFolder folder;
  TestRun run(on_text(folder) + Strings{"model.dropout=0.5"});
  Trainer& trainer = run.build();
  Batch batch = trainer.data.validation->rows(0, 2);
  const double loss = evaluate_batch(*trainer.evaluator, batch, false).loss_sum;
  // Dropout masks depend on the row id.
  batch.row_ids = {1000, 1001};
  EXPECT_EQ(evaluate_batch(*trainer.evaluator, batch, false).loss_sum, loss);
}

/// Evaluates initial weights on 25 batches of a row, on `ranks` ranks. `stop` gets the rank.
std::vector<EvaluationResult> evaluated(const TempFolder& folder, int ranks, const Strings& more = {},
                                        const std::function<bool(int rank)>& stop = {}) {
  const Strings args = on_text(folder) + Strings{"training.global_batch_size=8", "model.n_kv_heads=2"} + more;
  std::vector<EvaluationResult> results(static_cast<size_t>(ranks));
  const auto prepare = [&](TestRun& run, int rank) {
    run.trainer().add_callback(std::make_unique<CallAtStart>([&, rank](Trainer& trainer) {
      EXPECT_EQ(*trainer.data.validation->total_rows(), 25);
      results[static_cast<size_t>(rank)] = evaluate(
          *trainer.evaluator, *trainer.data.validation, /*rows=*/1, /*max_batches=*/-1,
          [&] { return stop && stop(rank); }, trainer.job.batch.part);
    }));
  };
  RankThreads threads(ranks);
  threads.run([&](int) { return args; }, prepare, /*last_step=*/0);
  for (const std::string& failure : threads.failures) EXPECT_EQ(failure, "");
  return results;
}

TEST(ValidationRanks, AllHaveTheResultOfOneRank) {
  const TempFolder folder;
  const EvaluationResult expected = evaluated(folder, 1).at(0);
  EXPECT_GT(expected.valid_labels, 700);
  EXPECT_EQ(expected.tokens, 25 * 32);
  const Strings divided{"parallelism.tensor_parallel_degree=2"};
  for (const auto& [ranks, more, tolerance] :
       std::vector<std::tuple<int, Strings, double>>{{2, {}, 0.0}, {4, {}, 0.0}, {4, divided, 1e-5}}) {
    for (const EvaluationResult& result : evaluated(folder, ranks, more)) {
      EXPECT_NEAR(result.loss, expected.loss, tolerance) << ranks;
      EXPECT_EQ(result.valid_labels, expected.valid_labels) << ranks;
      EXPECT_EQ(result.tokens, expected.tokens) << ranks;
    }
  }
}

TEST(ValidationRanks, ARequestToOneRankStopsAllAfterTheSameBatch) {
  const TempFolder folder;
  int asked = 0;
  const auto stop = [&asked](int rank) { return rank == 1 && ++asked == 2; };
  for (const EvaluationResult& result : evaluated(folder, 4, {}, stop)) {
    EXPECT_TRUE(result.stopped);
    EXPECT_EQ(result.tokens, 4 * 32);
  }
}

int64_t count_of(std::string_view text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
  return count;
}

TEST(Samples, AreWrittenEveryFewStepsAndChangeNothing) {
  const TempFolder folder;
  TestRun sampling(on_text(folder) +
                   Strings{"sampling.freq=4", "sampling.prompt=Line 1", "sampling.max_tokens=10"});
  const auto with = sampling.run();
  const std::string log = sampling.log_text();
  EXPECT_CONTAINS(log, "sample at step 4: Line 1");
  EXPECT_CONTAINS(log, "sample at step 8: Line 1");
  EXPECT_FALSE(contains(log, "sample at step 3:"));
  const auto without =
      TestRun(on_text(folder) + Strings{format("run_dir={}", (folder / "other").string())}).run();
  EXPECT_EQ(with, without);
}

TEST(Samples, AtTheEndsAreWrittenBeforeTheFirstStepAndAfterTheLast) {
  const TempFolder folder;
  const Strings at_ends = on_text(folder) + Strings{"sampling.at_ends=true", "sampling.prompt=Line 1",
                                                    "sampling.max_tokens=10", "training.steps=3"};
  const auto log_of = [&](const Strings& more, std::vector<StepRecord>& records) {
    TestRun run(at_ends + more);
    records = run.run();
    return run.log_text();
  };
  std::vector<StepRecord> with;
  std::vector<StepRecord> later;
  const std::string first = log_of({}, with);
  EXPECT_EQ(count_of(first, "sample at step"), 2);
  EXPECT_CONTAINS(first, "sample at step 0: Line 1", "sample at step 3: Line 1");
  EXPECT_EQ(count_of(log_of({}, later), "sample at step"), 2)
      << "without a step there is nothing new to show";
  EXPECT_EQ(count_of(log_of({"training.steps=4", "sampling.freq=4"}, later), "sample at step 4"), 1)
      << "freq and at_ends ask for the same one";
  const auto without = TestRun(on_text(folder) +
                               Strings{"training.steps=3", format("run_dir={}", (folder / "other").string())})
                           .run();
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace stepforge::testing
