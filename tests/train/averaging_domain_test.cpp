// SPDX-License-Identifier: Apache-2.0
// The labels over which the loss of a step is a mean: computed by hand, and through the trainer.
#include "stepforge/train/averaging_domain.h"

#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// The scalars of rank 0 of two in a step with `labels` of its own and `all_labels` on all ranks. The ranks have
/// these loss sums of their micro-batches.
StepScalars of_step(int64_t labels, int64_t all_labels, const std::vector<double>& own,
                    const std::vector<double>& other, double other_mean) {
  StepScalars step(static_cast<int64_t>(own.size()), 2, at::kCPU);
  step.begin(static_cast<double>(labels), labels, labels, 2);
  step.label_weight.fill_(all_labels);
  step.loss_sums.copy_(at::tensor(own, at::kDouble));
  std::vector<double> sent = other;
  sent.push_back(other_mean);
  step.gathered_losses.select(0, 1).copy_(at::tensor(sent, at::kDouble));
  return step;
}

/// All three functions, with a gather from the other rank in between.
void average(LossAggregation aggregation, const StepScalars& step) {
  const AveragingDomain domain(aggregation);
  domain.weigh_tokens(step);
  domain.average_own(step);
  step.gathered_losses.select(0, 0).copy_(step.own_losses);
  domain.average_all(step);
}

TEST(AveragingDomain, TokenMeanWeighsEveryLabelOfTheStepAlike) {
  const StepScalars step = of_step(3, 8, {4.5, 1.5}, {10.0, 0.0}, 2.0);
  average(LossAggregation::token_mean, step);
  const HostScalars host(step);
  EXPECT_EQ(host(step.token_weight), 1.0 / 8);
  EXPECT_EQ(host(step.own_mean), 2.0);
  EXPECT_EQ(host(step.loss), 2.0);
}

// Batches with 1 and 9 labels whose losses add up to 2 and 90: 9.2, while the mean of their means is 6.
// Finds what went wrong in torchtitan#4167, torchtitan#1842, #2206, verl#5625.
TEST(AveragingDomain, TokenMeanIsNoMeanOfMeans) {
  const StepScalars step = of_step(1, 10, {2.0}, {90.0}, 10.0);
  average(LossAggregation::token_mean, step);
  EXPECT_EQ(HostScalars(step)(step.loss), 9.2);
  EXPECT_EQ(HostScalars(step)(step.max_loss), 10.0);
  const StepScalars one_rank = of_step(10, 10, {2.0, 90.0}, {0.0, 0.0}, 0.0);
  average(LossAggregation::token_mean, one_rank);
  EXPECT_EQ(HostScalars(one_rank)(one_rank.own_mean), 9.2);
}

TEST(AveragingDomain, RankAverageWeighsEveryRankAlike) {
  const StepScalars step = of_step(3, 8, {4.5, 1.5}, {20.0, 0.0}, 4.0);
  average(LossAggregation::rank_average, step);
  EXPECT_EQ(HostScalars(step)(step.token_weight), 1.0 / 6);
  EXPECT_EQ(HostScalars(step)(step.loss), 3.0);
}

// Finds what went wrong in VeOmni#618 (a group without labels).
TEST(AveragingDomain, ARankWithoutLabelsContributesZero) {
  for (const auto aggregation : {LossAggregation::token_mean, LossAggregation::rank_average}) {
    const StepScalars masked = of_step(0, 0, {0.0}, {0.0}, 0.0);
    average(aggregation, masked);
    const HostScalars host(masked);
    EXPECT_EQ(host(masked.token_weight), 0.0);
    EXPECT_EQ(host(masked.own_mean), 0.0);
    EXPECT_EQ(host(masked.loss), 0.0);
  }
  const StepScalars masked = of_step(0, 2, {0.0}, {6.0}, 3.0);
  average(LossAggregation::rank_average, masked);
  EXPECT_EQ(HostScalars(masked)(masked.loss), 1.5);
}

/// Serves the rows of data rank `part` of two. On data rank 1, masks all labels of a micro-batch except the
/// first `kept`.
class MaskingLoader : public PrefetchLoader {
 public:
  MaskingLoader(const Trainer& trainer, int part, size_t kept)
      : PrefetchLoader(trainer.data.train, {trainer.job.batch.seq_len, 8, 1, 2, part}, 2),
        masks_(part == 1),
        kept_(kept) {}

  Batch next() override {
    Batch batch = PrefetchLoader::next();
    if (!masks_) return batch;
    for (size_t i = kept_; i < batch.labels.size(); ++i) batch.labels[i] = kIgnoredLabel;
    batch.valid_labels = static_cast<int64_t>(std::min(kept_, batch.labels.size()));
    return batch;
  }

 private:
  bool masks_;
  size_t kept_;
};

void serve_part(TestRun& run, int part, size_t kept) {
  run.trainer().replace_build_step("loader", [part, kept](Trainer& trainer) {
    trainer.loader = std::make_unique<MaskingLoader>(trainer, part, kept);
  });
}

struct Outcome {
  double loss = 0.0;
  double max_loss = 0.0;
  std::vector<at::Tensor> gradients;  ///< of each unit, gathered
};

Outcome outcome_of(const Trainer& trainer) {
  Outcome outcome{trainer.last_step.loss, trainer.last_step.max_loss, {}};
  for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
    outcome.gradients.push_back(
        trainer.store->unit(unit).whole(trainer.store->unit(unit).gradient()).clone());
  }
  return outcome;
}

const Strings one_step{"training.steps=1", "model.dropout=0"};

/// A single rank that reads the rows of data rank `part` of two.
Outcome alone(const TempFolder& folder, int part, size_t kept) {
  TestRun run(
      job(folder, format("alone-{}-{}", part, kept), one_step + Strings{"training.global_batch_size=4"}));
  serve_part(run, part, kept);
  run.run();
  return outcome_of(run.trainer());
}

/// Two ranks with loss_aggregation=rank_average.
Outcome together(const TempFolder& folder, size_t kept, const Strings& more) {
  RankThreads ranks(2);
  std::vector<Outcome> outcomes(2);
  const Strings args = job(folder, format("together-{}", kept),
                           one_step + Strings{"training.loss_aggregation=rank_average"} + more);
  ranks.run([&](int) { return args; },
            [&](TestRun& run, int rank) {
              serve_part(run, rank, kept);
              run.trainer().add_callback(std::make_unique<CallAt>([&, rank](Trainer& trainer) {
                outcomes[static_cast<size_t>(rank)] = outcome_of(trainer);
              }));
            });
  for (const auto& failure : ranks.failures) EXPECT_EQ(failure, "");
  EXPECT_EQ(outcomes[0].loss, outcomes[1].loss);
  EXPECT_EQ(outcomes[0].max_loss, outcomes[1].max_loss);
  return outcomes[0];
}

TEST(RankAverage, IsTheAverageOfLossesAndGradientsOfEachRankAlone) {
  const TempFolder folder;
  for (const Strings& more : std::vector<Strings>{{}, {"parallelism.data_parallel_replicate_degree=2"}}) {
    const Outcome first = alone(folder, 0, 3);
    const Outcome second = alone(folder, 1, 3);
    const Outcome both = together(folder, 3, more);
    EXPECT_NE(first.loss, second.loss);
    EXPECT_EQ(both.loss, (first.loss + second.loss) / 2);
    EXPECT_EQ(both.max_loss, std::max(first.loss, second.loss));
    for (size_t unit = 0; unit < both.gradients.size(); ++unit) {
      const at::Tensor expected = (first.gradients[unit] + second.gradients[unit]) / 2;
      const double scale = expected.abs().max().item<double>();
      EXPECT_LE((both.gradients[unit] - expected).abs().max().item<double>(), 1e-6 * scale) << unit;
    }
  }
}

TEST(RankAverage, ARankWithoutLabelsContributesZero) {
  const TempFolder folder;
  const Outcome first = alone(folder, 0, 0);
  const Outcome both = together(folder, 0, {});
  EXPECT_EQ(both.loss, first.loss / 2);
  for (size_t unit = 0; unit < both.gradients.size(); ++unit) {
    const double scale = first.gradients[unit].abs().max().item<double>();
    EXPECT_LE((both.gradients[unit] - first.gradients[unit] / 2).abs().max().item<double>(), 1e-6 * scale);
  }
}

TEST(RankAverage, OfOneRankEqualsTheTokenMeanBitForBit) {
  const TempFolder folder;
  const Records mean = TestRun(job(folder, "mean")).run();
  const Records average = TestRun(job(folder, "average", {"training.loss_aggregation=rank_average"})).run();
  EXPECT_EQ(numbers(average), numbers(mean));
}

/// The mean over the documents of `batch` of the mean over their labels, computed by hand.
double mean_of_sample_means(const Batch& batch, const at::Tensor& token_loss) {
  double sum = 0.0;
  int64_t samples = 0;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    double losses = 0.0;
    int64_t labels = 0;
    for (int32_t i = batch.cu_seqlens[document]; i < batch.cu_seqlens[document + 1]; ++i) {
      if (batch.labels[static_cast<size_t>(i)] == kIgnoredLabel) continue;
      losses += token_loss[i].item<double>();
      ++labels;
    }
    if (labels == 0) continue;
    sum += losses / static_cast<double>(labels);
    ++samples;
  }
  return sum / static_cast<double>(samples);
}

const Strings short_documents{"data.synthetic_document_length=9", "validation.freq=100",
                              "data.validation_fraction=0.1"};

TEST(LossReduction, OfSamplesIsTheMeanOfTheirMeans) {
  const TempFolder folder;
  TestRun run(job(folder, "sample", short_documents + one_step + Strings{"training.loss_reduction=sample"}));
  double expected = 0.0;
  double expected_mean = 0.0;
  run.trainer().add_callback(std::make_unique<CallAtStart>([&](Trainer& trainer) {
    const Batch batch = trainer.data.train->rows(0, 8);
    at::Tensor losses;
    for (int64_t row = 0; row < 8; ++row) {
      const at::Tensor of_row =
          evaluate_batch(*trainer.evaluator, trainer.data.train->rows(row, 1), false).token_loss;
      losses = row == 0 ? of_row.clone() : at::cat({losses, of_row});
    }
    expected = mean_of_sample_means(batch, losses);
    expected_mean = losses.sum().item<double>() / static_cast<double>(batch.valid_labels);
  }));
  const Records records = run.run();
  EXPECT_GT(std::abs(expected - expected_mean), 1e-4);
  EXPECT_NEAR(records.front().loss, expected, 1e-6);
}

TEST(LossReduction, GivesTheSameBitsOnOneAndFourRanks) {
  const TempFolder folder;
  for (const char* reduction : {"sample", "square"}) {
    const Strings args = short_documents + Strings{"training.reduction=ordered",
                                                   format("training.loss_reduction={}", reduction)};
    const Records one = TestRun(job(folder, format("one-{}", reduction), args)).run();
    for (const Records& records : RankThreads(4).run(job(folder, format("four-{}", reduction), args)))
      EXPECT_EQ(numbers(records), numbers(one)) << reduction;
  }
}

}  // namespace
}  // namespace stepforge::testing
