// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>

#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/swiglu.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kSwigluTokens = 20;
constexpr int64_t kSwigluChoices = 2;
constexpr int64_t kSwigluWidth = 33;

at::Tensor made_up_slots() {
  std::vector<int32_t> indices;
  for (int32_t n = 0; n < kSwigluTokens; ++n)
    for (const int32_t expert : {n % 3, 3 + n % 2}) indices.push_back(expert);
  return sort_by_expert(int_tensor(indices).view({kSwigluTokens, kSwigluChoices}), 5).slots;
}

struct ExpertSwigluResults {
  at::Tensor out;
  at::Tensor grad_gate_up;
  at::Tensor grad_weights;
};

ExpertSwigluResults run_expert_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                                      const at::Tensor& grad_out) {
  ExpertSwigluResults r = {at::empty_like(grad_out), at::empty_like(gate_up), at::empty_like(weights)};
  const at::Tensor slots = made_up_slots();
  expert_swiglu_forward(gate_up, weights, slots, r.out);
  expert_swiglu_backward(grad_out, gate_up, weights, slots, r.grad_gate_up, r.grad_weights);
  return r;
}

at::Tensor gate_up_of() {
  return random_tensor({kSwigluTokens * kSwigluChoices, 2 * kSwigluWidth}, 1) * 4;
}
at::Tensor weights_of() {
  return random_tensor({kSwigluTokens, kSwigluChoices}, 2);
}
at::Tensor grad_out_of() {
  return random_tensor({kSwigluTokens * kSwigluChoices, kSwigluWidth}, 3);
}

TEST(ExpertSwiglu, AgreesWithTheFp64Reference) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor gate_up = gate_up_of().to(type);
    const at::Tensor grad_out = grad_out_of().to(type);
    const ExpertSwigluResults actual = run_expert_swiglu(gate_up, weights_of(), grad_out);
    const ExpertSwigluResults expected =
        run_expert_swiglu(gate_up.to(at::kDouble), weights_of().to(at::kDouble), grad_out.to(at::kDouble));
    const double tolerance = type == at::kFloat ? 32 * kEps32 : kEps16;
    expect_close(actual.out, expected.out, tolerance, "out");
    expect_close(actual.grad_gate_up, expected.grad_gate_up, tolerance, "grad_gate_up");
    expect_close(actual.grad_weights, expected.grad_weights, 64 * kEps32, "grad_weights");
  }
}

TEST(ExpertSwiglu, ReferenceGradientsAreTheDerivatives) {
  const at::Tensor gate_up = gate_up_of().to(at::kDouble);
  const at::Tensor weights = weights_of().to(at::kDouble);
  const at::Tensor grad_out = grad_out_of().to(at::kDouble);
  const ExpertSwigluResults r = run_expert_swiglu(gate_up, weights, grad_out);
  const auto loss = [&](const at::Tensor& x, const at::Tensor& w) {
    return (run_expert_swiglu(x, w, grad_out).out * grad_out).sum().item<double>();
  };
  expect_derivative([&](const at::Tensor& x) { return loss(x, weights); }, gate_up, r.grad_gate_up,
                    "gate_up");
  expect_derivative([&](const at::Tensor& w) { return loss(gate_up, w); }, weights, r.grad_weights,
                    "weights");
}

TEST(ExpertSwiglu, WithWeightsOfOneItIsSwiglu) {
  const at::Tensor gate_up = gate_up_of();
  const at::Tensor expected = at::empty({gate_up.size(0), kSwigluWidth});
  swiglu_forward(gate_up, expected);
  EXPECT_TRUE(at::equal(
      run_expert_swiglu(gate_up, at::ones({kSwigluTokens, kSwigluChoices}), grad_out_of()).out, expected));
}

}  // namespace
}  // namespace stepforge::testing
