// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/gated_add.h"

#include <ATen/ops/empty_like.h>

#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

struct GatedResults {
  at::Tensor out;
  at::Tensor grad_y;
  at::Tensor grad_gate;
};

GatedResults run_gated(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                       const at::Tensor& grad_out) {
  GatedResults r = {at::empty_like(x), at::empty_like(y), at::empty_like(gate)};
  gated_add_forward(x, y, gate, r.out);
  gated_add_backward(grad_out, y, gate, r.grad_y, r.grad_gate);
  return r;
}

TEST(GatedAdd, AgreesWithTheFp64Reference) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto make = [&](uint64_t seed) { return random_tensor({21, 45}, seed).to(type); };
    const at::Tensor gate = random_tensor({21}, 9) * 4;
    const GatedResults actual = run_gated(make(1), make(2), gate, make(3));
    const GatedResults expected = run_gated(make(1).to(at::kDouble), make(2).to(at::kDouble),
                                            gate.to(at::kDouble), make(3).to(at::kDouble));
    const double tolerance = type == at::kFloat ? 16 * kEps32 : kEps16;
    expect_close(actual.out, expected.out, tolerance, "out");
    expect_close(actual.grad_y, expected.grad_y, tolerance, "grad_y");
    expect_close(actual.grad_gate, expected.grad_gate, 64 * kEps32, "grad_gate");
  }
}

TEST(GatedAdd, ReferenceGradientsAreTheDerivatives) {
  const auto make = [](uint64_t seed) { return random_tensor({6, 5}, seed).to(at::kDouble); };
  const at::Tensor gate = random_tensor({6}, 9).to(at::kDouble);
  const at::Tensor x = make(1);
  const at::Tensor y = make(2);
  const at::Tensor grad_out = make(3);
  const GatedResults r = run_gated(x, y, gate, grad_out);
  const auto loss = [&](const at::Tensor& second, const at::Tensor& logit) {
    return (run_gated(x, second, logit, grad_out).out * grad_out).sum().item<double>();
  };
  expect_derivative([&](const at::Tensor& v) { return loss(v, gate); }, y, r.grad_y, "y");
  expect_derivative([&](const at::Tensor& v) { return loss(y, v); }, gate, r.grad_gate, "gate");
}

TEST(GatedAdd, MayWriteOverItsFirstBranch) {
  const at::Tensor x = random_tensor({8, 16}, 1);
  const at::Tensor y = random_tensor({8, 16}, 2);
  const at::Tensor gate = random_tensor({8}, 3);
  const at::Tensor expected = run_gated(x, y, gate, x).out;
  gated_add_forward(x, y, gate, x);
  EXPECT_TRUE(at::equal(x, expected));
}

}  // namespace
}  // namespace stepforge::testing
