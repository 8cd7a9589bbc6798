// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_rows.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kRowTokens = 50;
constexpr int64_t kRowChoices = 3;
constexpr int64_t kRowExperts = 8;

/// Three different experts of each token, none of them 5.
at::Tensor made_up_indices() {
  std::vector<int32_t> indices;
  for (int32_t n = 0; n < kRowTokens; ++n)
    for (const int32_t expert : {(n * n) % 3, 3 + n % 2, 6 + n % 2}) indices.push_back(expert);
  return int_tensor(indices).view({kRowTokens, kRowChoices});
}

TEST(ExpertRows, AreSortedByExpertAndInsideAnExpertBySlot) {
  const at::Tensor indices = int_tensor({2, 0, 0, 2, 3, 0}).view({3, 2});
  const ExpertRows rows = sort_by_expert(indices, 4);
  EXPECT_EQ(rows.offsets, (std::vector<int64_t>{0, 3, 3, 5, 6}));
  EXPECT_TRUE(at::equal(rows.slots, int_tensor({1, 2, 5, 0, 3, 4})));
  EXPECT_TRUE(at::equal(rows.rows, int_tensor({3, 0, 1, 4, 5, 2}).view({3, 2})));
}

TEST(ExpertRows, OneExpertMayHaveAllTokens) {
  const ExpertRows rows = sort_by_expert(at::ones({kRowTokens, 1}, at::kInt), 3);
  EXPECT_EQ(rows.offsets, (std::vector<int64_t>{0, 0, kRowTokens, kRowTokens}));
}

TEST(ExpertRows, RefuseAnExpertThatIsNotThere) {
  EXPECT_THROW(sort_by_expert(int_tensor({0, 4}).view({1, 2}), 4), Error);
  EXPECT_THROW(sort_by_expert(int_tensor({0, -1}).view({1, 2}), 4), Error);
}

TEST(ExpertRows, OfOwnExpertsAreSortedByRankThenByExpertThenBySlot) {
  // Two ranks of two tokens; the last token of the second one only fills up.
  const at::Tensor indices = int_tensor({2, 0, 1, 3, 2, 1, -1, -1}).view({4, 2});
  const ExpertRows rows = select_rows(indices, {1, 3}, 2);
  EXPECT_EQ(rows.offsets, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(at::equal(rows.slots, int_tensor({2, 0, 5, 4})));
  EXPECT_TRUE(at::equal(rows.rows, int_tensor({1, -1, 0, -1, 3, 2, -1, -1}).view({4, 2})));
}

TEST(ExpertRows, OfSomeExpertsAreGatheredAndSlotsWithoutARowAddNothing) {
  const ExpertRows rows = select_rows(made_up_indices(), {1, 4}, 2);
  for (const int64_t width : {1, 700}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor x = random_tensor({kRowTokens, width}, 1).to(type);
      const at::Tensor gathered = at::empty({rows.count(), width}, x.options());
      gather_rows(x, rows, gathered);
      const at::Tensor sums = at::full_like(x, 7.0);
      combine_rows(gathered, rows, sums);
      const at::Tensor chosen = rows.rows.ge(0).sum(1, /*keepdim=*/true);
      EXPECT_EQ(chosen.eq(0).any().item<bool>(), true);
      EXPECT_TRUE(at::equal(sums, x * chosen.to(type)));
    }
  }
}

TEST(ExpertRows, CountsOnlyTokensThatHaveAWeight) {
  const at::Tensor indices = int_tensor({2, 0, 0, 2, 3, 0}).view({3, 2});
  const at::Tensor counts = count_tokens(indices, at::tensor({1.0F, 0.0F, 0.5F}), 4);
  EXPECT_TRUE(at::equal(counts, at::tensor({2, 0, 1, 1}, at::kLong)));
}

TEST(ExpertRows, GatherAndCombineAgreeWithTheReferenceAndAreTransposes) {
  const ExpertRows rows = sort_by_expert(made_up_indices(), kRowExperts);
  for (const int64_t width : {1, 24, 700}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor x = random_tensor({kRowTokens, width}, 1).to(type);
      const at::Tensor y = random_tensor({kRowTokens * kRowChoices, width}, 2).to(type);
      const at::Tensor gathered = at::empty_like(y);
      const at::Tensor combined = at::empty_like(x);
      gather_rows(x, rows, gathered);
      combine_rows(y, rows, combined);
      const at::Tensor expected = at::empty(x.sizes(), at::kDouble);
      reference::combine_rows(y.to(at::kDouble), rows, expected);
      expect_close(combined, expected, type == at::kBFloat16 ? kEps16 : 4 * kEps32, "combined");
      const at::Tensor exact = at::empty_like(y);
      reference::gather_rows(x, rows, exact);
      EXPECT_TRUE(at::equal(gathered, exact));
      if (type != at::kDouble) continue;
      EXPECT_NEAR((gathered * y).sum().item<double>(), (x * combined).sum().item<double>(), 1e-9);
    }
  }
}

TEST(ExpertRows, CombineAddsInTheOrderOfTheSlots) {
  const ExpertRows rows = sort_by_expert(int_tensor({2, 1, 0}).view({1, 3}), 3);
  // Slots are 2^24, 1, -2^24: in fp32 their sum in this order is 0, in any other order 1.
  const at::Tensor x = at::tensor({-0x1p24F, 1.0F, 0x1p24F}).view({3, 1});
  const at::Tensor out = at::empty({1, 1});
  combine_rows(x, rows, out);
  EXPECT_EQ(out.item<float>(), 0.0F);
}

TEST(ExpertRows, DoNotDependOnTheNumberOfThreads) {
  expect_same_for_all_threads([] {
    const ExpertRows rows = sort_by_expert(made_up_indices(), kRowExperts);
    const at::Tensor out = at::empty({kRowTokens, 700});
    combine_rows(random_tensor({kRowTokens * kRowChoices, 700}, 2), rows, out);
    return std::vector<at::Tensor>{rows.slots, rows.rows, out};
  });
}

}  // namespace
}  // namespace stepforge::testing
