// SPDX-License-Identifier: Apache-2.0
// Validation and samples during training.
#include <cmath>
#include <numbers>
#include <numeric>

#include "tests/train/fixture.h"

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

TEST(Validation, BitsPerByteAreBitsPerLabelOverBytesPerToken) {
  const TempFolder folder;
  TestRun run(on_text(folder));
  run.run();
  const EvaluationResult& result = run.trainer().last_validation;
  const double bytes_per_token = *run.trainer().data.validation->bytes_per_token();
  // Each byte is a token, and each document ends with an end-of-text token.
  EXPECT_GT(bytes_per_token, 0.9);
  EXPECT_LT(bytes_per_token, 1.0);
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

}  // namespace
}  // namespace stepforge::testing
