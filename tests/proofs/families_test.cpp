// SPDX-License-Identifier: Apache-2.0
// Families whose layers have windows, caps, biases or other norms: divided over ranks they have the loss curve of one
// rank.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/catalog/all_families.h"
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

const Strings kWholeAttention{
    "parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"};

Strings job(const std::filesystem::path& run_dir, const std::string& family, bool windows = true) {
  return odd_job(run_dir, family, 20,
                 Strings{"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=10", "training.seq_len=20",
                         "training.global_batch_size=4"} +
                     setting_overrides(family, windows));
}

class FamilyTraining : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyTraining, LossesOnSeveralRanksAreThoseOfOne) {
  const Strings plan = needs_whole_attention(GetParam()) ? kWholeAttention : Strings{};
  const std::vector<LayoutCase> layouts = {{2, 1, 2, 1, plan},
                                           {2, 1, 2, 1, plan + kAllTokens + kRecomputed},
                                           {4, 1, 2, 1, plan + kAsync + kRegions},
                                           {2, 2, 1, 1, {}},
                                           {2, 2, 1, 1, kUlysses + kRecomputed},
                                           {4, 2, 2, 1, plan + kWholeLogits}};
  for (const LayoutCase& layout : layouts) {
    expect_losses_of_one_rank(layout,
                              [](const std::filesystem::path& run_dir) { return job(run_dir, GetParam()); });
  }
}

TEST_P(FamilyTraining, WithoutWindowsLossesOfARingAreThoseOfOneRank) {
  expect_losses_of_one_rank({2, 2, 1, 1, kRing}, [](const std::filesystem::path& run_dir) {
    return job(run_dir, GetParam(), /*windows=*/false);
  });
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTraining,
                         ::testing::Values("qwen2", "mistral", "olmo2", "gemma2", "gemma3"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace stepforge::testing
