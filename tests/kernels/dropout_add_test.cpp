// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/dropout_add.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

TokenCoords make_coords(const std::vector<int64_t>& rows, const std::vector<int32_t>& positions) {
  at::Tensor row_ids = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), row_ids.mutable_data_ptr<int64_t>());
  return {.row_ids = row_ids, .positions = int_tensor(positions)};
}

constexpr DropoutKey kKey = {0x1234567890ABCDEF};

TEST(DropoutAdd, AgreesWithTheReferenceBitForBit) {
  const TokenCoords coords = make_coords({0, 5, 5, int64_t{1} << 40}, {0, 3, 4, 2000000000});
  for (const int64_t width : {1, 3, 64, 130}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random_tensor({4, width}, 1).to(type);
      const at::Tensor residual = random_tensor({4, width}, 2).to(type);
      const at::Tensor out = at::empty_like(x);
      const at::Tensor expected = at::empty_like(x);
      const at::Tensor zero = at::zeros_like(x);
      dropout_add_forward(x, zero, 0.25, kKey, coords, out);
      reference::dropout_add_forward(x, zero, 0.25, kKey, coords, expected);
      EXPECT_TRUE(at::equal(out, expected));
      dropout_add_backward(x, 0.25, kKey, coords, out);
      EXPECT_TRUE(at::equal(out, expected));
      dropout_add_forward(x, residual, 0.25, kKey, coords, out);
      reference::dropout_add_forward(x, residual, 0.25, kKey, coords, expected);
      // One fused multiply-add against a product that is rounded first.
      expect_close(out, expected, type == at::kFloat ? 2 * kEps32 : kEps16, "sum");
    }
  }
}

TEST(DropoutAdd, NoTokensAreNoFault) {
  const at::Tensor none = at::empty({0, 5});
  const at::Tensor out = at::empty({0, 5});
  EXPECT_NO_THROW(dropout_add_backward(none, 0.5, kKey, make_coords({}, {}), out));
  EXPECT_NO_THROW(reference::dropout_add_backward(none, 0.5, kKey, make_coords({}, {}), out));
}

TEST(DropoutAdd, AnElementsMaskDoesNotDependOnTheBatch) {
  const at::Tensor x = random_tensor({1, 96}, 3);
  const at::Tensor wide = x.expand({3, 96}).contiguous();
  const at::Tensor alone = at::empty_like(x);
  const at::Tensor packed = at::empty_like(wide);
  dropout_add_backward(x, 0.5, kKey, make_coords({42}, {7}), alone);
  dropout_add_backward(wide, 0.5, kKey, make_coords({1, 42, 42}, {7, 7, 8}), packed);
  EXPECT_TRUE(at::equal(packed[1], alone[0]));
  EXPECT_FALSE(at::equal(packed[0], alone[0]));
  EXPECT_FALSE(at::equal(packed[2], alone[0]));
}

TEST(DropoutAdd, SomeChannelsAreDroppedAsAmongAllOfThem) {
  constexpr int64_t kWidth = 300;
  const at::Tensor x = random_tensor({2, kWidth}, 7);
  TokenCoords coords = make_coords({9, 42}, {7, 70000});
  const at::Tensor whole = at::empty_like(x);
  dropout_add_backward(x, 0.5, kKey, coords, whole);
  for (const int64_t channel : {1, 2, 3, 4, 62, 64, 127}) {
    for (const int64_t width : {1, 5, 60, 61, 64, 173}) {
      coords.channel = channel;
      const at::Tensor part = x.narrow(1, channel, width).contiguous();
      const at::Tensor out = at::empty_like(part);
      dropout_add_backward(part, 0.5, kKey, coords, out);
      EXPECT_TRUE(at::equal(out, whole.narrow(1, channel, width))) << channel << " " << width;
      reference::dropout_add_backward(part, 0.5, kKey, coords, out);
      EXPECT_TRUE(at::equal(out, whole.narrow(1, channel, width))) << channel << " " << width;
    }
  }
  coords.channel = -1;
  EXPECT_THROW(dropout_add_backward(x, 0.5, kKey, coords, whole), Error);
}

TEST(DropoutAdd, KeepsTheExpectedShareAndTheMean) {
  const at::Tensor x = at::empty({100, 1000}).fill_(1);
  std::vector<int32_t> positions(100);
  for (int32_t i = 0; i < 100; ++i) positions[static_cast<size_t>(i)] = i;
  const at::Tensor out = at::empty_like(x);
  dropout_add_backward(x, 0.1, kKey, make_coords(std::vector<int64_t>(100, 9), positions), out);
  // 100,000 draws: the standard deviation of the share is 0.00095.
  EXPECT_NEAR(out.eq(0).to(at::kFloat).mean().item<float>(), 0.1, 0.004);
  EXPECT_NEAR(out.mean().item<float>(), 1.0, 0.005);
}

TEST(DropoutAdd, WithoutDropoutIsASumAndReadsNoCoordinates) {
  const at::Tensor x = random_tensor({5, 33}, 4);
  const at::Tensor residual = random_tensor({5, 33}, 5);
  const at::Tensor out = at::empty_like(x);
  dropout_add_forward(x, residual, 0.0, kKey, {}, out);
  EXPECT_TRUE(at::equal(out, x + residual));
  dropout_add_backward(x, 0.0, kKey, {}, out);
  EXPECT_TRUE(at::equal(out, x));
}

TEST(DropoutAdd, KeysDifferBySeedStepAndSite) {
  const auto key = [](uint64_t seed, uint64_t step, uint64_t site) {
    return dropout_key_of_site(dropout_key_of_step(seed, step), site).key;
  };
  EXPECT_EQ(key(1, 2, 3), key(1, 2, 3));
  EXPECT_NE(key(1, 2, 3), key(2, 2, 3));
  EXPECT_NE(key(1, 2, 3), key(1, 3, 3));
  EXPECT_NE(key(1, 2, 3), key(1, 2, 4));
  EXPECT_NE(key(1, 2, 3), key(1, 3, 2));
}

TEST(DropoutAdd, RefusesAProbabilityOutsideZeroToOne) {
  const at::Tensor x = random_tensor({1, 4}, 6);
  for (const double p : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THROW(dropout_add_backward(x, p, kKey, make_coords({0}, {0}), x), Error) << p;
  }
}

}  // namespace
}  // namespace stepforge::testing
