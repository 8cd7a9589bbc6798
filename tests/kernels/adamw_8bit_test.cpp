// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw_8bit.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/dynamic_code.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kEightBitElements = 40 * kQuantizedBlock;
constexpr AdamWOptions kEightBitOptions = {
    .lr = 6e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

/// A parameter and its state after `updates` updates.
struct EightBit {
  at::Tensor p = random_tensor({kEightBitElements}, 1);
  at::Tensor m = at::zeros({kEightBitElements}, at::kByte);
  at::Tensor v = at::zeros({kEightBitElements}, at::kByte);
  at::Tensor m_scale = at::zeros({kEightBitElements / kQuantizedBlock});
  at::Tensor v_scale = at::zeros({kEightBitElements / kQuantizedBlock});

  using Update = decltype(adamw_8bit_update);
  void step(const at::Tensor& g, double number, Update* update = adamw_8bit_update, int64_t begin = 0,
            int64_t end = kEightBitElements, double finite = 1) const {
    const auto part = [&](const at::Tensor& all, int64_t block) {
      return all.slice(0, begin / block, end / block);
    };
    const UpdateScalars scalars{.finite = scalar(finite),
                                .number = scalar(number),
                                .lr_factor = scalar(0.5),
                                .grad_scale = scalar(0.5)};
    update(part(p, 1), part(g, 1), {part(m, 1), part(m_scale, kQuantizedBlock)},
           {part(v, 1), part(v_scale, kQuantizedBlock)}, kEightBitOptions, scalars);
  }
  bool operator==(const EightBit& other) const {
    return at::equal(p, other.p) && at::equal(m, other.m) && at::equal(v, other.v) &&
           at::equal(m_scale, other.m_scale) && at::equal(v_scale, other.v_scale);
  }
};

/// Sizes differ by block, and within blocks by about six orders of magnitude.
at::Tensor gradient_of_step(uint64_t step) {
  const at::Tensor spread =
      random_tensor({kEightBitElements}, 100 + step) * (random_tensor({kEightBitElements}, 5) * 2).exp();
  return (spread.view({-1, kQuantizedBlock}) *
          random_tensor({kEightBitElements / kQuantizedBlock, 1}, 6).exp())
      .view({-1})
      .contiguous();
}

TEST(AdamW8bit, CodeIsTheDynamicOneOfTheArticle) {
  for (const bool is_signed : {true, false}) {
    const std::array<float, 256>& code = dynamic_code(is_signed);
    EXPECT_TRUE(std::ranges::is_sorted(code));
    EXPECT_TRUE(std::ranges::adjacent_find(code) == code.end()) << "256 different values";
    EXPECT_EQ(code.back(), 1.0F);
    EXPECT_EQ(std::ranges::count(code, 0.0F), 1);
    EXPECT_EQ(std::ranges::count_if(code, [](float x) { return x < 0; }), is_signed ? 127 : 0);
  }
  // The largest but 1, and the smallest above 0: the middles of 64 or 128 parts of [0.1, 1], and of [1e-7, 1e-6] or its half.
  EXPECT_FLOAT_EQ(dynamic_code(true)[254], 1.0F - 0.9F / 128);
  EXPECT_FLOAT_EQ(dynamic_code(true)[128], 0.55e-6F);
  EXPECT_FLOAT_EQ(dynamic_code(false)[254], 1.0F - 0.9F / 256);
  EXPECT_FLOAT_EQ(dynamic_code(false)[1], 0.325e-6F);
}

TEST(AdamW8bit, AgreesWithItsReference) {
  const EightBit fast;
  const EightBit reference;
  for (int step = 1; step <= 6; ++step) {
    // Both from one state: a value between two codes may be rounded either way.
    reference.p.copy_(fast.p);
    reference.m.copy_(fast.m);
    reference.v.copy_(fast.v);
    reference.m_scale.copy_(fast.m_scale);
    reference.v_scale.copy_(fast.v_scale);
    fast.step(gradient_of_step(static_cast<uint64_t>(step)), step);
    reference.step(gradient_of_step(static_cast<uint64_t>(step)), step, reference::adamw_8bit_update);
    expect_close(fast.p, reference.p, 8 * kEps32, "parameter");
    expect_close(fast.m_scale, reference.m_scale, 8 * kEps32, "first scales");
    expect_close(fast.v_scale, reference.v_scale, 8 * kEps32, "second scales");
    for (const auto& [ours, theirs] : {std::pair(fast.m, reference.m), std::pair(fast.v, reference.v)}) {
      const at::Tensor apart = (ours.to(at::kInt) - theirs.to(at::kInt)).abs();
      EXPECT_LE(apart.max().item<int>(), 1);
      EXPECT_LE(apart.sum().item<int64_t>(), kEightBitElements / 1000);
    }
  }
}

/// The error of a moment is at most half the distance of neighbours in its code, which is 0.9 / 128 of the largest of its block.
TEST(AdamW8bit, MomentsAreThoseOfFp32UpToTheCode) {
  const EightBit state;
  const at::Tensor g = gradient_of_step(1);
  state.step(g, 1);
  const at::Tensor exact_m = (g * 0.5 * 0.1).to(at::kDouble).view({-1, kQuantizedBlock});
  at::Tensor error = at::empty({kEightBitElements / kQuantizedBlock, kQuantizedBlock}, at::kDouble);
  for (int64_t i = 0; i < kEightBitElements; ++i) {
    const float value =
        dynamic_code(true)[state.m[i].item<uint8_t>()] * state.m_scale[i / kQuantizedBlock].item<float>();
    error.view({-1})[i] = value - exact_m.view({-1})[i].item<double>();
  }
  const at::Tensor largest = exact_m.abs().amax(1, true);
  EXPECT_LE((error.abs() / largest).max().item<double>(), 0.9 / 128 + 1e-6);
}

TEST(AdamW8bit, GivesTheSameBitsInPiecesOfWholeBlocksAndForAllThreads) {
  const EightBit whole;
  const EightBit pieces;
  const int64_t border = 7 * kQuantizedBlock;
  for (int step = 1; step <= 3; ++step) {
    const at::Tensor g = gradient_of_step(static_cast<uint64_t>(step));
    whole.step(g, step);
    pieces.step(g, step, adamw_8bit_update, border, kEightBitElements);
    pieces.step(g, step, adamw_8bit_update, 0, border);
  }
  EXPECT_TRUE(whole == pieces);
  expect_same_for_all_threads([] {
    const EightBit state;
    state.step(gradient_of_step(1), 1);
    return std::vector<at::Tensor>{state.p, state.m, state.v, state.m_scale, state.v_scale};
  });
}

TEST(AdamW8bit, ChangesNoBitIfTheFlagIsDown) {
  for (auto* update : {adamw_8bit_update, reference::adamw_8bit_update}) {
    const EightBit state;
    EightBit before;
    state.step(gradient_of_step(1), 1);
    before.step(gradient_of_step(1), 1);
    state.step(at::full({kEightBitElements}, std::nan("")), 2, update, 0, kEightBitElements, 0);
    EXPECT_TRUE(state == before);
  }
}

/// Otherwise the update after one with a small gradient, such as that of an expert that gets no token, is divided by eps.
TEST(AdamW8bit, ASecondMomentAboveZeroNeverBecomesZero) {
  for (auto* update : {adamw_8bit_update, reference::adamw_8bit_update}) {
    const EightBit state;
    at::Tensor g = at::full({kEightBitElements}, 1e-5);
    g[0] = 1.0;  // the square of the others is 1e-10 of it, far below the code
    state.step(g, 1, update);
    EXPECT_EQ(state.v.view({-1})[1].item<int>(), 1);
    const at::Tensor before = state.p.clone();
    state.step(at::zeros({kEightBitElements}), 2, update);
    EXPECT_LE((state.p - before).abs().max().item<double>(), 0.01);
  }
}

TEST(AdamW8bit, StaysCloseToAdamWOnAQuadratic) {
  const EightBit state;
  const at::Tensor target = random_tensor({kEightBitElements}, 9);
  const at::Tensor p = state.p.clone();
  const at::Tensor m = at::zeros({kEightBitElements});
  const at::Tensor v = at::zeros({kEightBitElements});
  for (int step = 1; step <= 100; ++step) {
    state.step(state.p - target, step);
    const UpdateScalars scalars{
        .finite = scalar(1), .number = scalar(step), .lr_factor = scalar(0.5), .grad_scale = scalar(0.5)};
    adamw_update(p, p - target, m, v, 0, kEightBitElements, kEightBitOptions, scalars);
  }
  const double ours = (state.p - target).square().mean().item<double>();
  const double theirs = (p - target).square().mean().item<double>();
  EXPECT_NEAR(ours, theirs, 0.02 * theirs);
}

TEST(AdamW8bit, RefusesPartsOfBlocks) {
  const EightBit state;
  EXPECT_THROW(state.step(gradient_of_step(1), 1, adamw_8bit_update, 0, 100), Error);
  EXPECT_THROW(state.step(gradient_of_step(1), 0), Error) << "update 0";
}

}  // namespace
}  // namespace stepforge::testing
