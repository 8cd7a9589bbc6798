// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/dropout_add.h"

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

constexpr uint64_t kDropoutKey = 0x123456789ABCDEF0;

struct DropCase {
  at::Tensor x;
  at::Tensor residual;
  at::Tensor row_ids;
  at::Tensor positions;
  double p = 0.3;
  int64_t channel = 0;
};

DropCase drop_case(int64_t rows, int64_t width, at::ScalarType type) {
  return {.x = random_tensor({rows, width}, 1).to(type),
          .residual = random_tensor({rows, width}, 2).to(type),
          .row_ids = at::arange(rows, at::kLong).mul_(int64_t{1} << 33).add_(5),
          .positions = at::arange(rows, at::kInt).mul_(3)};
}

/// out, grad_x of x as a gradient. `in_place`: out is the residual, and grad_x is the gradient.
std::vector<at::Tensor> drop_on_device(const DropCase& c, int64_t shift, bool in_place = false) {
  const Guarded x(c.x, shift);
  const Guarded grad_out(c.x, shift);
  const Guarded residual(c.residual, shift);
  const Guarded row_ids(c.row_ids);
  const Guarded positions(c.positions);
  const Guarded new_out(c.x.sizes(), c.x.scalar_type(), shift);
  const Guarded new_grad(c.x.sizes(), c.x.scalar_type(), shift);
  const Guarded& out = in_place ? residual : new_out;
  const Guarded& grad_x = in_place ? grad_out : new_grad;
  cuda::Dropout dropout{
      .type = dtype_of(c.x), .rows = c.x.size(0), .width = c.x.size(1), .p = c.p, .key = kDropoutKey};
  dropout.channel = c.channel;
  if (c.p > 0) {
    dropout.row_ids = row_ids.data<int64_t>();
    dropout.positions = positions.data<int32_t>();
  }
  cuda::dropout_add_forward(dropout, x.data(), residual.data(), out.data(), nullptr);
  cuda::dropout_add_backward(dropout, grad_out.data(), grad_x.data(), nullptr);
  return {out.copy(), grad_x.copy()};
}

/// A product and a sum.
void expect_drop(const DropCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return drop_on_device(c, shift); });
  const at::Tensor out = at::empty(c.x.sizes(), at::kDouble);
  const at::Tensor grad = at::empty_like(out);
  const TokenCoords coords{c.row_ids, c.positions, c.channel};
  if (c.x.size(0) == 0) return;  // which the reference does not take
  reference::dropout_add_forward(wide(c.x), wide(c.residual), c.p, {kDropoutKey}, coords, out);
  reference::dropout_add_backward(wide(c.x), c.p, {kDropoutKey}, coords, grad);
  const double tolerance = tolerance_of(c.x.scalar_type(), 3);
  expect_close(actual[0], out, tolerance, "out");
  expect_close(actual[1], grad, tolerance, "grad_x");
  EXPECT_TRUE(actual[1].eq(0).equal(grad.eq(0))) << "other elements are dropped";
}

TEST(CudaDropoutAdd, AgreesWithTheFp64Reference) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {0, 1, 5}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        DropCase c = drop_case(rows, width, type);
        expect_drop(c);
        c.p = 0.0;
        expect_drop(c);
      }
    }
  }
}

TEST(CudaDropoutAdd, GradientsHaveTheBitsOfTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const DropCase c = drop_case(40, 100, type);
    const at::Tensor expected = at::empty_like(c.x);
    cpu::dropout_add_backward(c.x, c.p, {kDropoutKey}, {c.row_ids, c.positions}, expected);
    EXPECT_TRUE(same_bits(drop_on_device(c, 0)[1], expected));
  }
}

TEST(CudaDropoutAdd, SomeChannelsAreDroppedAsAmongAllOfThem) {
  for (const int64_t channel : {1, 3, 4, 130}) {
    for (const int64_t width : {5, 64}) {
      DropCase c = drop_case(3, width, at::kFloat);
      c.channel = channel;
      expect_drop(c);
    }
  }
}

TEST(CudaDropoutAdd, AnElementWhoseWordIsTheThresholdIsKept) {
  DropCase c = drop_case(1, 4, at::kFloat);
  const uint32_t word = philox(kDropoutKey, 0, 5)[2];
  c.p = word * 0x1.0p-32;
  EXPECT_NE(drop_on_device(c, 0)[1][0][2].item<float>(), 0.0F);
  c.p = (word + 1) * 0x1.0p-32;
  EXPECT_EQ(drop_on_device(c, 0)[1][0][2].item<float>(), 0.0F);
}

TEST(CudaDropoutAdd, MemoryNeedNotBeAligned) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    expect_drop(drop_case(3, 64, type), /*shift=*/1);
}

TEST(CudaDropoutAdd, MoreRowsThanBlocksAreAllComputed) {
  expect_drop(drop_case(cuda::kMaxBlocks + 3, 4, at::kFloat));
}

TEST(CudaDropoutAdd, MayWriteOverItsInputs) {
  const DropCase c = drop_case(5, 36, at::kBFloat16);
  expect_same_bits(drop_on_device(c, 0, /*in_place=*/true), drop_on_device(c, 0), " differs in place");
}

}  // namespace
}  // namespace stepforge::testing
