// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/router_correction.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/router.h"
#include "stepforge/kernels/scalars.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

TEST(RouterCorrection, RisesForExpertsBelowTheMeanAndFallsForThoseAbove) {
  const at::Tensor correction = at::tensor({0.5, 0.0, 0.0, 0.0}, at::kDouble);
  const at::Tensor load = at::tensor({9.0, 5.0, 5.0, 1.0}, at::kDouble);
  update_router_correction(load, 0.25, /*centered=*/false, scalar(1.0), correction);
  EXPECT_TRUE(at::equal(correction, at::tensor({0.25, 0.0, 0.0, 0.25}, at::kDouble)));
}

TEST(RouterCorrection, CenteredKeepsTheSumOfTheCorrections) {
  const at::Tensor correction = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble);
  const at::Tensor load = at::tensor({17.0, 1.0, 1.0, 1.0}, at::kDouble);  // one falls, three rise
  update_router_correction(load, 0.5, /*centered=*/true, scalar(1.0), correction);
  EXPECT_TRUE(at::equal(correction, at::tensor({0.25, 2.25, 3.25, 4.25}, at::kDouble)));
}

TEST(RouterCorrection, DoesNotChangeIfTheFlagIsDown) {
  const at::Tensor correction = at::tensor({1.0, -2.0}, at::kDouble);
  update_router_correction(at::tensor({3.0, 1.0}, at::kDouble), 0.5, /*centered=*/true, scalar(0.0),
                           correction);
  EXPECT_TRUE(at::equal(correction, at::tensor({1.0, -2.0}, at::kDouble)));
}

/// The ratio of the largest to the mean load over the last of many steps of a stream in which some experts are favoured.
double imbalance(double rate) {
  constexpr int64_t kExperts = 16;
  constexpr int64_t kTokens = 512;
  constexpr int64_t kSteps = 300;
  constexpr int64_t kLast = 20;
  const RouterOptions options = {.score = RouterScore::sigmoid, .chosen = 2, .normalize = true};
  const at::Tensor skew = random_tensor({kExperts}, 1);
  const at::Tensor correction = at::zeros({kExperts});
  const at::Tensor indices = at::empty({kTokens, options.chosen}, at::kInt);
  const at::Tensor weights = at::empty({kTokens, options.chosen});
  at::Tensor load = at::zeros({kExperts}, at::kLong);
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor logits = random_tensor({kTokens, kExperts}, 100 + static_cast<uint64_t>(step)) + skew;
    router_forward(logits, correction, {}, options, indices, weights, {});
    const at::Tensor tokens = count_tokens(indices, at::ones({kTokens}), kExperts);
    if (step >= kSteps - kLast) load.add_(tokens);
    update_router_correction(tokens.to(at::kDouble), rate, /*centered=*/true, scalar(1.0), correction);
  }
  return load.max().item<double>() / load.to(at::kDouble).mean().item<double>();
}

TEST(RouterCorrection, EvensTheLoadOfASkewedStream) {
  EXPECT_GT(imbalance(0.0), 2.0);
  EXPECT_LT(imbalance(0.01), 1.2);
}

}  // namespace
}  // namespace stepforge::testing
