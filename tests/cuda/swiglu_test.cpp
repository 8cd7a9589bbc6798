// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/swiglu.h"

#include <optional>

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

/// A form of the operation on some rows. The reference takes fp64.
struct GatedCase {
  at::Tensor gate_up;
  at::Tensor grad_out;
  Activation activation = Activation::silu;
  std::optional<ClampedSwiglu> clamped = {};
  at::Tensor weights = {};
  at::Tensor slots = {};
};

GatedCase gated_case(int64_t rows, int64_t width, at::ScalarType type, bool weighted) {
  GatedCase made{.gate_up = (random_tensor({rows, 2 * width}, 1) * 8).to(type),
                 .grad_out = random_tensor({rows, width}, 2).to(type)};
  if (!weighted) return made;
  made.weights = random_tensor({rows, 1}, 3);
  made.slots = at::arange(rows, at::kInt).flip(0).contiguous();
  return made;
}

/// out, grad_gate_up, grad_weights.
std::vector<at::Tensor> gated_reference(const GatedCase& c) {
  const GatedRows rows{c.activation, c.clamped, wide(c.weights), c.slots};
  std::vector<at::Tensor> r = {at::empty_like(wide(c.grad_out)), at::empty_like(wide(c.gate_up)),
                               c.weights.defined() ? at::empty_like(wide(c.weights)) : at::Tensor()};
  reference::gated_forward(wide(c.gate_up), rows, r[0]);
  reference::gated_backward(wide(c.grad_out), wide(c.gate_up), rows, r[1], r[2]);
  if (!c.weights.defined()) r.pop_back();
  return r;
}

std::vector<at::Tensor> gated_on_device(const GatedCase& c, int64_t shift) {
  const at::ScalarType type = c.gate_up.scalar_type();
  const Guarded gate_up(c.gate_up, shift);
  const Guarded grad_out(c.grad_out, shift);
  const Guarded out(c.grad_out.sizes(), type, shift);
  const Guarded grad(c.gate_up.sizes(), type, shift);
  cuda::GatedRows rows{.rows = c.gate_up.size(0), .width = c.grad_out.size(1), .activation = c.activation};
  rows.clamped = c.clamped.has_value();
  if (c.clamped) rows.limits = *c.clamped;
  const bool weighted = c.weights.defined();
  const Guarded weights(weighted ? c.weights : at::empty({0}, at::kFloat));
  const Guarded slots(weighted ? c.slots : at::empty({0}, at::kInt));
  const Guarded grad_weights(weights.tensor().sizes(), at::kFloat);
  if (weighted) {
    rows.weights = weights.data<float>();
    rows.slots = slots.data<int32_t>();
  }
  cuda::gated_forward(dtype_of(c.gate_up), gate_up.data(), rows, out.data(), nullptr);
  cuda::gated_backward(dtype_of(c.gate_up), grad_out.data(), gate_up.data(), rows, grad.data(),
                       weighted ? grad_weights.data<float>() : nullptr, nullptr);
  std::vector<at::Tensor> results = {out.copy(), grad.copy()};
  if (weighted) results.push_back(grad_weights.copy());
  return results;
}

/// fp32: the exponential (2 roundings) and 8 more, with a margin of 1.5; bf16: the rounding of the result. A sum over a row
/// adds roundings of its terms, which grow as the root of their number.
void expect_gated(const GatedCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return gated_on_device(c, shift); });
  const auto expected = gated_reference(c);
  const double tolerance = tolerance_of(c.gate_up.scalar_type(), 16);
  expect_close(actual[0], expected[0], tolerance, "out");
  expect_close(actual[1], expected[1], tolerance, "grad_gate_up");
  if (c.weights.defined()) expect_close(actual[2], expected[2], 32 * kEps32, "grad_weights");
}

TEST(CudaSwiglu, AgreesWithTheFp64Reference) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {0, 1, 5}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
          GatedCase c = gated_case(rows, width, type, /*weighted=*/false);
          c.activation = activation;
          expect_gated(c);
        }
      }
    }
  }
}

TEST(CudaSwiglu, RowsWithWeightsAgreeWithTheFp64Reference) {
  for (const int64_t width : {1, 17, 1000, 4096}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      GatedCase c = gated_case(7, width, type, /*weighted=*/true);
      expect_gated(c);
      c.clamped = ClampedSwiglu{.limit = 3.0, .alpha = 1.702};
      expect_gated(c);
    }
  }
}

TEST(CudaSwiglu, MemoryNeedNotBeAligned) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    GatedCase c = gated_case(3, 64, type, /*weighted=*/true);
    expect_gated(c, /*shift=*/1);
    c.clamped = ClampedSwiglu{};
    expect_gated(c, /*shift=*/1);
  }
}

TEST(CudaSwiglu, MoreRowsThanBlocksAreAllComputed) {
  GatedCase c = gated_case(cuda::kMaxBlocks + 3, 2, at::kFloat, /*weighted=*/true);
  expect_gated(c);
}

TEST(CudaSwiglu, BackwardMayWriteOverItsInput) {
  const GatedCase c = gated_case(5, 40, at::kFloat, /*weighted=*/false);
  const at::Tensor expected = gated_on_device(c, 0)[1];
  const Guarded gate_up(c.gate_up);
  const Guarded grad_out(c.grad_out);
  cuda::gated_backward(DType::f32, grad_out.data(), gate_up.data(), {.rows = 5, .width = 40}, gate_up.data(),
                       nullptr, nullptr);
  EXPECT_TRUE(same_bits(gate_up.tensor(), expected));
}

TEST(CudaSwiglu, SaturatesWithoutOverflowAndPassesNanOn) {
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    GatedCase c = gated_case(1, 4, at::kFloat, /*weighted=*/false);
    c.activation = activation;
    const std::vector<float> values = {1000, -1000, 90, std::nanf(""), 1, 1, 2, 1};
    std::copy(values.begin(), values.end(), c.gate_up.mutable_data_ptr<float>());
    c.grad_out.fill_(1);
    const auto r = gated_on_device(c, 0);
    const auto* out = r[0].const_data_ptr<float>();
    EXPECT_EQ(out[0], 1000.0F);
    EXPECT_NEAR(out[1], 0.0F, 1e-30F);
    EXPECT_EQ(out[2], 180.0F);
    EXPECT_TRUE(std::isnan(out[3]));
    EXPECT_TRUE(r[1].slice(1, 0, 3).isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace stepforge::testing
