// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
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

constexpr AdamWOptions kOptions = {.lr = 6e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

/// Update 7 with half the learning rate and half the gradients.
UpdateScalars some_scalars() {
  return {.finite = scalar(1), .number = scalar(7), .lr_factor = scalar(0.5), .grad_scale = scalar(0.5)};
}

void update(const State& state, int64_t begin, int64_t end, const UpdateScalars& scalars = some_scalars()) {
  adamw_update(state.p, state.g, state.m, state.v, begin, end, kOptions, scalars);
}

bool same_bits(const State& left, const State& right) {
  return at::equal(left.p, right.p) && at::equal(left.m, right.m) && at::equal(left.v, right.v);
}

TEST(AdamW, AgreesWithTheFp64ReferenceAndWithLibtorch) {
  const State fast = make_state(5000, at::kFloat);
  const State exact = make_state(5000, at::kDouble);
  State theirs = make_state(5000, at::kFloat);
  update(fast, 0, 5000);
  update(exact, 0, 5000);
  at::Tensor scaled = theirs.g * 0.5;
  at::Tensor step = at::zeros({}).fill_(7);
  at::_fused_adamw_({theirs.p}, {scaled}, {theirs.m}, {theirs.v}, {}, {step}, 0.5 * kOptions.lr,
                    kOptions.beta1, kOptions.beta2, kOptions.weight_decay, kOptions.eps, false, false);
  expect_close(fast.p, exact.p, 4 * kEps32, "parameter");
  expect_close(fast.m, exact.m, 4 * kEps32, "first moment");
  expect_close(fast.v, exact.v, 4 * kEps32, "second moment");
  expect_close(fast.p, theirs.p, 4 * kEps32, "libtorch's parameter");
}

TEST(AdamW, MomentsInBf16AreRoundedOnceAfterAnUpdateInFp32) {
  const auto narrow = [](int64_t count) {
    State state = make_state(count, at::kFloat);
    state.m = state.m.to(at::kBFloat16);
    state.v = state.v.to(at::kBFloat16);
    return state;
  };
  const State fast = narrow(3000);
  State exact = narrow(3000);
  exact.m = exact.m.to(at::kFloat);
  exact.v = exact.v.to(at::kFloat);
  update(fast, 0, 3000);
  update(exact, 0, 3000);
  EXPECT_TRUE(at::equal(fast.p, exact.p));
  EXPECT_TRUE(at::equal(fast.m, exact.m.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(fast.v, exact.v.to(at::kBFloat16)));
  const State reference = narrow(3000);
  reference::adamw_update(reference.p, reference.g, reference.m, reference.v, 0, 3000, kOptions,
                          some_scalars());
  expect_close(reference.p, fast.p, 8 * kEps32, "parameter of the reference");
  expect_close(reference.v, fast.v, kEps16, "second moment of the reference");
}

/// Longer than a slice of the reference.
TEST(AdamW, TheReferenceOfALongBufferHasTheBitsOfItsParts) {
  constexpr int64_t kLong = (int64_t{1} << 22) + 3000;
  const State whole = make_state(kLong, at::kFloat);
  const State parts{whole.p.clone(), whole.g, whole.m.clone(), whole.v.clone()};
  const auto run = [&](const State& state, int64_t begin, int64_t end) {
    reference::adamw_update(state.p, state.g, state.m, state.v, begin, end, kOptions, some_scalars());
  };
  run(whole, 0, kLong);
  run(parts, 0, 1000);
  run(parts, 1000, kLong);
  EXPECT_TRUE(same_bits(whole, parts));
}

TEST(AdamW, TouchesOnlyItsIntervalAndGivesTheSameBitsInPieces) {
  const State whole = make_state(3000, at::kFloat);
  const State pieces = make_state(3000, at::kFloat);
  update(whole, 100, 2900);
  update(pieces, 100, 1033);
  update(pieces, 1033, 2900);
  EXPECT_TRUE(at::equal(whole.p, pieces.p));
  EXPECT_TRUE(at::equal(whole.v, pieces.v));
  const State untouched = make_state(3000, at::kFloat);
  EXPECT_TRUE(at::equal(whole.p.slice(0, 0, 100), untouched.p.slice(0, 0, 100)));
  EXPECT_TRUE(at::equal(whole.m.slice(0, 2900), untouched.m.slice(0, 2900)));
}

TEST(AdamW, PaddingOfZerosStaysZero) {
  const State zeros{at::zeros({64}), at::zeros({64}), at::zeros({64}), at::zeros({64})};
  update(zeros, 0, 64);
  EXPECT_TRUE(zeros.p.eq(0).all().item<bool>());
}

TEST(AdamW, ChangesNoBitIfTheFlagIsDown) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {  // the kernel, and the reference
    const State state = make_state(3000, type);
    state.g.fill_(std::nan(""));
    UpdateScalars scalars = some_scalars();
    scalars.finite.zero_();
    scalars.grad_scale.fill_(std::nan(""));
    update(state, 0, 3000, scalars);
    EXPECT_TRUE(same_bits(state, make_state(3000, type))) << type;
  }
}

TEST(AdamW, ReadsItsScalarsWhenItRuns) {
  const State state = make_state(3000, at::kFloat);
  const UpdateScalars scalars = some_scalars();
  const auto run = [&] { update(state, 0, 3000, scalars); };
  scalars.finite.zero_();
  run();
  EXPECT_TRUE(same_bits(state, make_state(3000, at::kFloat)));
  scalars.finite.fill_(1);
  scalars.number.fill_(1);
  scalars.lr_factor.fill_(2);
  scalars.grad_scale.fill_(0.25);
  run();
  const State expected = make_state(3000, at::kFloat);
  AdamWOptions doubled = kOptions;
  doubled.lr *= 2;
  const UpdateScalars first = first_update_scalars(at::kCPU);
  adamw_update(expected.p, expected.g * 0.25, expected.m, expected.v, 0, 3000, doubled, first);
  EXPECT_TRUE(same_bits(state, expected));
}

TEST(AdamW, RefusesIntervalsOutsideTheBufferAndUpdateZero) {
  const State state = make_state(10, at::kFloat);
  EXPECT_THROW(update(state, 0, 11), Error);
  EXPECT_THROW(update(state, -1, 5), Error);
  EXPECT_THROW(update(state, 6, 5), Error);
  UpdateScalars scalars = some_scalars();
  scalars.number.zero_();
  EXPECT_THROW(update(state, 0, 5, scalars), Error);
  scalars.number = at::ones({}, at::kFloat);
  EXPECT_THROW(update(state, 0, 5, scalars), Error);
}

}  // namespace
}  // namespace stepforge::testing
