// SPDX-License-Identifier: Apache-2.0
// The gradient of a step depends on its rows, not on how they are split into micro-batches.
#include <cmath>

#include "stepforge/catalog/families.h"
#include "tests/catalog/all_families.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

/// All gradients after one step of 8 packed rows in micro-batches of `local` rows.
std::vector<at::Tensor> gradients(const TempFolder& folder, int64_t local, const Strings& more) {
  TestRun run(trainer_run(folder / format("run-{}", local)) +
              Strings{"training.global_batch_size=8", format("training.local_batch_size={}", local),
                      "model.dropout=0.1", "data.synthetic_document_length=13", "training.steps=1",
                      "checkpoint.enable=false"} +
              more);
  run.run();
  std::vector<at::Tensor> all;
  for (size_t unit = 0; unit < run.trainer().store->size(); ++unit) {
    if (!run.trainer().store->unit(unit).trained()) continue;
    all.push_back(run.trainer().store->unit(unit).gradient().clone());
  }
  return all;
}

double relative_difference(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < left.size(); ++i) {
    difference += (left[i].to(at::kDouble) - right[i].to(at::kDouble)).square().sum().item<double>();
    norm += right[i].to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

// Finds what went wrong in transformers#34191, #37766 (accumulation is not the large batch), #35203 (of some models).
TEST(BatchContract, EverySplitGivesTheSameGradientInEveryFamily) {
  for (const ModelFamily& family : model_families()) {
    const TempFolder folder;
    const Strings model = setting_overrides(std::string(family.name), /*windows=*/false);
    const auto whole = gradients(folder, 8, model);
    for (const int64_t local : {1, 2, 4}) {
      EXPECT_LE(relative_difference(gradients(folder, local, model), whole), 1e-6)
          << family.name << ", " << local << " rows per micro-batch";
    }
  }
}

TEST(BatchContract, EverySplitGivesTheSameBitsInOrderedMode) {
  const TempFolder folder;
  const Strings ordered = {"training.reduction=ordered"};
  const auto whole = gradients(folder, 8, ordered);
  for (const int64_t local : {1, 2, 4}) {
    const auto split = gradients(folder, local, ordered);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(split[i], whole[i])) << local;
  }
}

}  // namespace
}  // namespace stepforge::testing
