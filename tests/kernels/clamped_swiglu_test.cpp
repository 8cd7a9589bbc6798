// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/swiglu.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kClampedTokens = 20;
constexpr int64_t kClampedWidth = 33;
/// Reached by a third of the values below.
constexpr ClampedSwiglu kNarrow = {.limit = 2.5, .alpha = 1.3};

at::Tensor clamped_slots() {
  std::vector<int32_t> indices;
  for (int32_t n = 0; n < kClampedTokens; ++n)
    for (const int32_t expert : {n % 3, 3 + n % 2}) indices.push_back(expert);
  return sort_by_expert(int_tensor(indices).view({kClampedTokens, 2}), 5).slots;
}

struct ClampedResults {
  at::Tensor out;
  at::Tensor grad_gate_up;
  at::Tensor grad_weights;
};

ClampedResults run_clamped(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& grad_out) {
  ClampedResults r = {at::empty_like(grad_out), at::empty_like(gate_up), at::empty_like(weights)};
  const at::Tensor slots = clamped_slots();
  clamped_swiglu_forward(gate_up, weights, slots, kNarrow, r.out);
  clamped_swiglu_backward(grad_out, gate_up, weights, slots, kNarrow, r.grad_gate_up, r.grad_weights);
  return r;
}

at::Tensor clamped_input() {
  return random_tensor({2 * kClampedTokens, 2 * kClampedWidth}, 1) * 4;
}

TEST(ClampedSwiglu, AgreesWithTheFp64Reference) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor gate_up = clamped_input().to(type);
    const at::Tensor grad_out = random_tensor({2 * kClampedTokens, kClampedWidth}, 3).to(type);
    const at::Tensor weights = random_tensor({kClampedTokens, 2}, 2);
    const ClampedResults actual = run_clamped(gate_up, weights, grad_out);
    const ClampedResults expected =
        run_clamped(gate_up.to(at::kDouble), weights.to(at::kDouble), grad_out.to(at::kDouble));
    const double tolerance = type == at::kFloat ? 32 * kEps32 : kEps16;
    expect_close(actual.out, expected.out, tolerance, "out");
    expect_close(actual.grad_gate_up, expected.grad_gate_up, tolerance, "grad_gate_up");
    expect_close(actual.grad_weights, expected.grad_weights, 64 * kEps32, "grad_weights");
  }
}

TEST(ClampedSwiglu, ReferenceGradientsAreTheDerivatives) {
  const at::Tensor gate_up = clamped_input().to(at::kDouble);
  const at::Tensor weights = random_tensor({kClampedTokens, 2}, 2).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({2 * kClampedTokens, kClampedWidth}, 3).to(at::kDouble);
  const ClampedResults r = run_clamped(gate_up, weights, grad_out);
  const auto loss = [&](const at::Tensor& x, const at::Tensor& w) {
    return (run_clamped(x, w, grad_out).out * grad_out).sum().item<double>();
  };
  expect_derivative([&](const at::Tensor& x) { return loss(x, weights); }, gate_up, r.grad_gate_up,
                    "gate_up");
  expect_derivative([&](const at::Tensor& w) { return loss(gate_up, w); }, weights, r.grad_weights,
                    "weights");
}

TEST(ClampedSwiglu, GateAndUpAlternateAndAreLimited) {
  const at::Tensor gate_up = at::tensor({1.0F, 0.5F, 9.0F, -9.0F}).view({1, 4});
  const at::Tensor out = at::empty({1, 2});
  clamped_swiglu_forward(gate_up, at::tensor({2.0F}).view({1, 1}), int_tensor({0}), {}, out);
  EXPECT_NEAR(out[0][0].item<double>(), 2 * 1.5 / (1 + std::exp(-1.702)), 1e-6);
  EXPECT_NEAR(out[0][1].item<double>(), 2 * -6.0 * 7 / (1 + std::exp(-1.702 * 7)), 1e-4);
}

}  // namespace
}  // namespace stepforge::testing
