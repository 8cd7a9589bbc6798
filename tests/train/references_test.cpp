// SPDX-License-Identifier: Apache-2.0
// Training on references alone (kernels.reference): what a device without kernels computes.
#include <gtest/gtest.h>

#include "tests/catalog/all_families.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// Losses and norms of the steps of rank 0.
std::vector<double> numbers_by(const std::string& reference, const Strings& options, int ranks) {
  const TempFolder folder;
  const Strings args =
      job(folder, "run", options + Strings{"training.steps=3", "kernels.reference=" + reference});
  const std::vector<Records> records = RankThreads(ranks).run(args);
  std::vector<double> numbers;
  for (const StepRecord& step : records.front()) numbers.insert(numbers.end(), {step.loss, step.grad_norm});
  return numbers;
}

void expect_references_train(const Strings& options, double tolerance, int ranks = 1) {
  const std::vector<double> kernels = numbers_by("false", options, ranks);
  const std::vector<double> references = numbers_by("true", options, ranks);
  ASSERT_EQ(kernels.size(), 6U);
  ASSERT_EQ(references.size(), kernels.size());
  EXPECT_NE(references, kernels) << "no reference was used";
  // AdamW divides gradients by their size: after an update the rounding of small ones counts like that of large ones.
  for (size_t i = 0; i < kernels.size(); ++i)
    EXPECT_NEAR(references[i] / kernels[i], 1.0, i < 2 ? tolerance : 5 * tolerance) << "number " << i;
}

TEST(References, TrainEveryFamilyToTheLossesOfTheKernels) {
  for (const ModelFamily& family : model_families()) {
    SCOPED_TRACE(family.name);
    expect_references_train(setting_overrides(std::string(family.name), /*windows=*/true), 1e-5);
  }
}

TEST(References, TrainADividedVocabulary) {
  expect_references_train({"parallelism.tensor_parallel_degree=2", "model.n_kv_heads=2",
                           "training.label_smoothing=0.1", "training.z_loss_weight=1e-3"},
                          1e-5, 2);
}

TEST(References, TrainInBf16) {
  expect_references_train({"precision.compute=bf16"}, 1e-2);
}

TEST(References, UpdateByEveryOptimizer) {
  for (const char* name : {"adamw_8bit", "lion", "muon", "sgd"})
    expect_references_train({format("optimizer.name={}", name)}, 1e-4);
}

}  // namespace
}  // namespace stepforge::testing
