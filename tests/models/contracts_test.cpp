// SPDX-License-Identifier: Apache-2.0
// The batch and loss contracts: what a step computes depends on its rows only, not on their split into
// micro-batches or on recomputation.
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/isfinite.h>
#include <gtest/gtest.h>

#include "stepforge/plan/step_plan.h"
#include "stepforge/train/evaluation.h"
#include "tests/models/training.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

struct Outcome {
  StepResult result;
  at::Tensor gradients;
};

/// Leaves many valid labels in most rows, one in row 2, none in row 5.
void mask_unevenly(std::vector<Batch>& batches) {
  for (Batch& batch : batches) {
    const auto seq_len = static_cast<size_t>(batch.seq_len);
    mask_labels(batch, [&](size_t i) {
      const uint64_t row = batch.row_ids[i / seq_len] % 8;
      const size_t position = i % seq_len;
      return row == 5 || (row == 2 && position != 9) || (row == 3 && position % 3 == 0);
    });
  }
}

Outcome run(const Config& config, int64_t step = 3) {
  Job job(config);
  std::vector<Batch> batches = job.split(job.made_up_rows());
  mask_unevenly(batches);
  StepResult result = job.step(batches, step);
  return {std::move(result), job.gradients()};
}

double distance(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wanted = expected.to(at::kDouble);
  return (actual.to(at::kDouble) - wanted).norm().item<double>() / wanted.norm().item<double>();
}

Config with_local_batch_size(Config config, int64_t rows) {
  config.training.local_batch_size = rows;
  return config;
}

class Contracts : public ::testing::TestWithParam<std::string> {
 protected:
  Config config() const { return tiny_job(GetParam()); }
};

TEST_P(Contracts, AnySplitIntoMicroBatchesGivesTheSameGradientAndLoss) {
  const Outcome whole = run(with_local_batch_size(config(), 8));
  EXPECT_GT(whole.gradients.norm().item<double>(), 0.1);
  for (const int64_t rows : {1, 2, 4}) {
    const Outcome split = run(with_local_batch_size(config(), rows));
    EXPECT_LE(distance(split.gradients, whole.gradients), 1e-6) << rows;
    EXPECT_NEAR(split.result.loss, whole.result.loss, 1e-6 * whole.result.loss) << rows;
    EXPECT_NEAR(split.result.grad_norm, whole.result.grad_norm, 1e-6 * whole.result.grad_norm) << rows;
    EXPECT_EQ(split.result.valid_labels, whole.result.valid_labels);
  }
}

TEST_P(Contracts, DropoutBelongsToTheRowAndNotToTheMicroBatch) {
  Config with_dropout = config();
  with_dropout.model.dropout = 0.2;
  const Outcome whole = run(with_local_batch_size(with_dropout, 8));
  EXPECT_GT(distance(whole.gradients, run(config()).gradients), 0.1);
  EXPECT_GT(distance(run(with_local_batch_size(with_dropout, 8), /*step=*/4).gradients, whole.gradients),
            0.1);
  for (const int64_t rows : {1, 4}) {
    EXPECT_LE(distance(run(with_local_batch_size(with_dropout, rows)).gradients, whole.gradients), 1e-6)
        << rows;
  }
}

TEST_P(Contracts, OrderedModeGivesTheSameBitsForAnyMicroBatchSizeAndNumberOfThreads) {
  Config ordered = config();
  ordered.training.reduction = ReductionMode::ordered;
  ordered.model.dropout = 0.1;
  const Outcome expected = run(ordered);
  EXPECT_LE(distance(expected.gradients,
                     [&] {
                       Config fast = ordered;
                       fast.training.reduction = ReductionMode::fast;
                       return run(fast).gradients;
                     }()),
            1e-6);
  const int threads = at::get_num_threads();
  for (const int64_t rows : {1, 2, 4}) {
    at::set_num_threads(static_cast<int>(rows));
    const Outcome actual = run(with_local_batch_size(ordered, rows));
    EXPECT_TRUE(at::equal(actual.gradients, expected.gradients)) << rows;
    EXPECT_EQ(actual.result.loss, expected.result.loss) << rows;
    EXPECT_EQ(actual.result.grad_norm, expected.result.grad_norm) << rows;
  }
  at::set_num_threads(threads);
}

TEST_P(Contracts, RecomputationChangesNoBitOfLossAndGradients) {
  Config plain = config();
  plain.model.dropout = 0.1;
  plain.training.local_batch_size = 4;
  const Outcome expected = run(plain);
  const auto expect_equal = [&](RecomputeMode mode, const auto& change) {
    Config again = plain;
    again.activation_checkpoint.mode = mode;
    change(again.activation_checkpoint);
    const Outcome actual = run(again);
    EXPECT_TRUE(at::equal(actual.gradients, expected.gradients)) << choice_name(mode);
    EXPECT_EQ(actual.result.loss, expected.result.loss) << choice_name(mode);
  };
  expect_equal(RecomputeMode::full, [](auto&) {});
  expect_equal(RecomputeMode::every_n, [](auto& section) { section.every_n = 2; });
  expect_equal(RecomputeMode::blocks, [](auto& section) { section.blocks = {1}; });
  expect_equal(RecomputeMode::regions, [](auto& section) { section.regions = {RecomputeRegion::attention}; });
  expect_equal(RecomputeMode::regions,
               [](auto& section) { section.regions = {RecomputeRegion::attention, RecomputeRegion::mlp}; });
  for (const double budget : {0.0, 0.3, 0.7})
    expect_equal(RecomputeMode::budget, [&](auto& section) { section.memory_budget = budget; });
  expect_equal(RecomputeMode::calls, [](auto& section) { section.calls = {"swiglu", "linear"}; });
}

TEST_P(Contracts, Bf16GathersReleasesAndStaysNearFp32) {
  Config narrow = config();
  narrow.precision.compute = DType::bf16;
  Job job(narrow);
  std::vector<Batch> batches = job.split(job.made_up_rows());
  mask_unevenly(batches);
  const StepResult result = job.step(batches);
  const Outcome wide = run(config());
  EXPECT_NEAR(result.loss, wide.result.loss, 5e-3 * wide.result.loss);
  EXPECT_LE(distance(job.gradients(), wide.gradients), 3e-2);
  for (size_t u = 0; u < job.store.size(); ++u) {
    if (job.store.unit(u).spec().state) continue;  // resident
    EXPECT_FALSE(job.store.unit(u).gathered());
    EXPECT_ANY_THROW(job.store.unit(u).parameters().front().value().data_ptr<at::BFloat16>());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Contracts, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

TEST(LossContract, LossIsTheMeanOverTheValidLabelsOfTheWholeStep) {
  const Config config = with_local_batch_size(tiny_job(), 2);
  Job job(config);
  std::vector<Batch> batches = job.split(job.made_up_rows());
  mask_unevenly(batches);
  const StepProgram evaluation = plan_evaluation(plan_job(config));
  Executor evaluator(evaluation, job.model, job.store);
  double sum = 0.0;
  int64_t valid = 0;
  for (const Batch& batch : batches) {
    const BatchLoss loss = evaluate_batch(evaluator, batch, /*with_logits=*/false);
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      const double token_loss = loss.token_loss.data_ptr<float>()[i];
      EXPECT_EQ(token_loss == 0.0, batch.labels[i] == kIgnoredLabel);
      sum += token_loss;
      valid += batch.labels[i] == kIgnoredLabel ? 0 : 1;
    }
  }
  const StepResult result = job.step(batches);
  EXPECT_EQ(result.valid_labels, valid);
  EXPECT_NEAR(result.loss, sum / static_cast<double>(valid), 1e-9);
}

TEST(LossContract, AnAllMaskedMicroBatchContributesExactlyZero) {
  Job one(with_local_batch_size(
      [] {
        Config config = tiny_job();
        config.training.global_batch_size = 4;
        return config;
      }(),
      4));
  one.step(one.split(one.made_up_rows()));
  for (const bool masked_first : {false, true}) {
    Job two(with_local_batch_size(tiny_job(), 4));
    const std::vector<Row> rows = two.made_up_rows();
    std::vector<Batch> batches = two.split(rows);
    mask_labels(batches.at(1), [](size_t) { return true; });
    if (masked_first) std::swap(batches[0], batches[1]);
    two.step(batches);
    EXPECT_TRUE(at::equal(two.gradients(), one.gradients())) << masked_first;
  }
}

TEST(LossContract, AStepWithoutAnyValidLabelHasZeroLossAndGradients) {
  Job job(tiny_job());
  std::vector<Batch> batches = job.split(job.made_up_rows());
  for (Batch& batch : batches) mask_labels(batch, [](size_t) { return true; });
  const StepResult result = job.step(batches);
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.grad_norm, 0.0);
  EXPECT_TRUE(job.gradients().eq(0).all().item<bool>());
}

TEST(LossContract, TheFullLogitsAreNeverMaterialized) {
  install_cpu_allocator();
  ModelConfig config = tiny_config();
  config.vocab_size = 2048;
  TinyModel tiny(config, DType::f32, 1, /*loss_chunk=*/64);
  const BatchTensors batch(made_up_batch(8, 128, config.vocab_size));
  Context context;
  context.batch = &batch;
  const at::Tensor hidden = random_tensor({batch.token_count(), config.dim}, 1);
  const int64_t full_logits = batch.token_count() * config.vocab_size * 4;
  reset_cpu_peak();
  const int64_t before = cpu_memory().live_bytes;
  tiny.model.heads.front()->loss_with_gradients({hidden}, context, scalar(1));
  EXPECT_LT(cpu_memory().peak_bytes - before, full_logits / 8);
  reset_cpu_peak();
  tiny.model.heads.front()->loss({hidden}, context, /*with_logits=*/false);
  EXPECT_LT(cpu_memory().peak_bytes - before, full_logits / 8);
}

/// The tokens of a document in the flattened batch.
struct TokenRange {
  int64_t begin;
  int64_t length;
};

/// Packs whole documents into rows of 32 tokens in the given order; returns the tokens of each document by
/// its number.
std::map<int, TokenRange> pack(const std::vector<std::vector<int>>& rows, Batch& batch) {
  const std::vector<int64_t> lengths = {5, 9, 18, 32, 14, 11, 7};
  std::map<int, TokenRange> ranges;
  batch = empty_batch(32, static_cast<int64_t>(rows.size()));
  for (size_t r = 0; r < rows.size(); ++r) {
    Row row;
    for (const int document : rows[r]) {
      const int64_t length = lengths.at(static_cast<size_t>(document));
      if (!row.tokens.empty()) row.document_starts.push_back(static_cast<int32_t>(row.tokens.size()));
      ranges[document] = {static_cast<int64_t>(32 * r + row.tokens.size()), length};
      const Row made = made_up_row(1000 + static_cast<uint64_t>(document), length, 96);
      row.tokens.insert(row.tokens.end(), made.tokens.begin(), made.tokens.end() - 1);
    }
    row.document_starts.push_back(32);
    row.tokens.push_back(0);
    append_row(row, r, batch);
  }
  return ranges;
}

TEST(Packing, TokenLossesDoNotDependOnHowDocumentsArePacked) {
  Config config = tiny_job("qwen3");
  config.training.local_batch_size = 4;
  config.training.global_batch_size = 4;
  Job job(config);
  for (size_t u = 0; u < job.store.size(); ++u)
    job.store.unit(u).master().mul_(4.0);  // so that attention has an effect
  const StepProgram program = plan_evaluation(plan_job(config));
  Executor evaluator(program, job.model, job.store);
  const std::vector<std::vector<std::vector<int>>> packings = {
      {{0, 1, 2}, {3}, {4, 5, 6}}, {{6, 4, 5}, {2, 0, 1}, {3}}, {{2, 4}, {3}, {1, 5, 6, 0}}};
  std::map<int, std::vector<float>> expected;
  for (const auto& packing : packings) {
    Batch batch;
    const std::map<int, TokenRange> ranges = pack(packing, batch);
    const BatchLoss loss = evaluate_batch(evaluator, batch, false);
    for (const auto& [document, range] : ranges) {
      const float* data = loss.token_loss.data_ptr<float>() + range.begin;
      const std::vector<float> losses(data, data + range.length);
      const auto& wanted = expected.try_emplace(document, losses).first->second;
      for (size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], wanted[i], 1e-5) << document << " " << i;
    }
  }
  EXPECT_EQ(expected.size(), 7U);
}

TEST(TiedEmbedding, GradientIsTheSumOfBothUsesAndCountsOnceInTheNorm) {
  const auto run_with = [](bool tied) {
    Job job(tiny_job("llama", tied));
    if (!tied) {
      job.store.parameter("head.weight")
          .value()
          .detach()
          .copy_(job.store.parameter("embedding.weight").value());
    }
    const StepResult result = job.step(job.split(job.made_up_rows()));
    double squares = 0.0;
    for (size_t u = 0; u < job.store.size(); ++u) {
      for (const Parameter& parameter : job.store.unit(u).parameters()) {
        squares += parameter.gradient().to(at::kDouble).square().sum().item<double>();
      }
    }
    EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-9 * result.grad_norm);
    at::Tensor gradient = job.store.parameter("embedding.weight").gradient().clone();
    if (!tied) gradient += job.store.parameter("head.weight").gradient();
    return gradient;
  };
  EXPECT_LE(distance(run_with(true), run_with(false)), 1e-6);
}

TEST(NonFinite, APlantedNanStopsTheUpdateAndIsFoundInFp32AndBf16) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Config config = tiny_job();
    config.precision.compute = compute;
    config.debug.plant_nan_step = 1;
    config.debug.plant_nan_block = "layers.1";
    Job job(config);
    const at::Tensor before = job.masters();
    const StepResult result = job.step(job.split(job.made_up_rows()), 0, 1.0);
    EXPECT_FALSE(result.updated);
    EXPECT_CONTAINS(result.first_nonfinite, "layers.1") << dtype_name(compute);
    EXPECT_TRUE(at::equal(job.masters(), before));
    EXPECT_TRUE(job.step(job.split(job.made_up_rows()), 1, 1.0).updated);
  }
}

}  // namespace
}  // namespace stepforge::testing
