// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

struct State {
  at::Tensor p, g, m, v;
};

State make_state(int64_t elements, at::ScalarType type) {
  return {random_tensor({elements}, 1).to(type), random_tensor({elements}, 2).to(type),
          random_tensor({elements}, 3).to(type) * 0.1, random_tensor({elements}, 4).square().to(type) * 0.1};
}

constexpr AdamWSettings kSettings = {
    .options = {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
    .step = 7,
    .grad_scale = 0.5};

TEST(AdamW, AgreesWithTheFp64ReferenceAndWithLibtorch) {
  const State fast = make_state(5000, at::kFloat);
  const State exact = make_state(5000, at::kDouble);
  State theirs = make_state(5000, at::kFloat);
  adamw_update(fast.p, fast.g, fast.m, fast.v, 0, 5000, kSettings);
  adamw_update(exact.p, exact.g, exact.m, exact.v, 0, 5000, kSettings);
  at::Tensor scaled = theirs.g * kSettings.grad_scale;
  at::Tensor step = at::zeros({}).fill_(kSettings.step);
  at::_fused_adamw_({theirs.p}, {scaled}, {theirs.m}, {theirs.v}, {}, {step}, kSettings.options.lr,
                    kSettings.options.beta1, kSettings.options.beta2, kSettings.options.weight_decay,
                    kSettings.options.eps, false, false);
  expect_close(fast.p, exact.p, 4 * kEps32, "parameter");
  expect_close(fast.m, exact.m, 4 * kEps32, "first moment");
  expect_close(fast.v, exact.v, 4 * kEps32, "second moment");
  expect_close(fast.p, theirs.p, 4 * kEps32, "libtorch's parameter");
}

TEST(AdamW, TouchesOnlyItsIntervalAndGivesTheSameBitsInPieces) {
  const State whole = make_state(3000, at::kFloat);
  const State pieces = make_state(3000, at::kFloat);
  adamw_update(whole.p, whole.g, whole.m, whole.v, 100, 2900, kSettings);
  adamw_update(pieces.p, pieces.g, pieces.m, pieces.v, 100, 1033, kSettings);
  adamw_update(pieces.p, pieces.g, pieces.m, pieces.v, 1033, 2900, kSettings);
  EXPECT_TRUE(at::equal(whole.p, pieces.p));
  EXPECT_TRUE(at::equal(whole.v, pieces.v));
  const State untouched = make_state(3000, at::kFloat);
  EXPECT_TRUE(at::equal(whole.p.slice(0, 0, 100), untouched.p.slice(0, 0, 100)));
  EXPECT_TRUE(at::equal(whole.m.slice(0, 2900), untouched.m.slice(0, 2900)));
}

TEST(AdamW, PaddingOfZerosStaysZero) {
  const at::Tensor p = at::zeros({64}), g = at::zeros({64}), m = at::zeros({64}), v = at::zeros({64});
  adamw_update(p, g, m, v, 0, 64, kSettings);
  EXPECT_TRUE(p.eq(0).all().item<bool>());
}

TEST(AdamW, RefusesIntervalsOutsideTheBufferAndStepZero) {
  const State s = make_state(10, at::kFloat);
  EXPECT_THROW(adamw_update(s.p, s.g, s.m, s.v, 0, 11, kSettings), Error);
  EXPECT_THROW(adamw_update(s.p, s.g, s.m, s.v, -1, 5, kSettings), Error);
  EXPECT_THROW(adamw_update(s.p, s.g, s.m, s.v, 6, 5, kSettings), Error);
  EXPECT_THROW(adamw_update(s.p, s.g, s.m, s.v, 0, 5, {.options = {}, .step = 0}), Error);
}

}  // namespace
}  // namespace stepforge::testing
