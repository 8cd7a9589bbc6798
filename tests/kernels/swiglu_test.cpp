// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/swiglu.h"

#include <limits>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>

#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

struct SwigluResults {
  at::Tensor out;
  at::Tensor grad;
};

SwigluResults run(const at::Tensor& gate_up, const at::Tensor& grad_out,
                  Activation activation = Activation::silu) {
  SwigluResults r = {at::empty_like(grad_out), at::empty_like(gate_up)};
  swiglu_forward(gate_up, r.out, activation);
  swiglu_backward(grad_out, gate_up, r.grad, activation);
  return r;
}

TEST(Swiglu, AgreesWithTheFp64Reference) {
  for (const int64_t width : {1, 31, 128}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor gate_up = (random_tensor({37, 2 * width}, 1) * 8).to(type);
      const at::Tensor grad_out = random_tensor({37, width}, 2).to(type);
      for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
        const SwigluResults actual = run(gate_up, grad_out, activation);
        const SwigluResults expected = run(gate_up.to(at::kDouble), grad_out.to(at::kDouble), activation);
        const double tolerance = type == at::kFloat ? 16 * kEps32 : kEps16;
        expect_close(actual.out, expected.out, tolerance, "out");
        expect_close(actual.grad, expected.grad, tolerance, "grad");
      }
    }
  }
}

TEST(Swiglu, ReferenceGradientIsTheDerivative) {
  const at::Tensor gate_up = random_tensor({6, 10}, 3).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({6, 5}, 4).to(at::kDouble);
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    expect_derivative(
        [&](const at::Tensor& x) {
          return (run(x, grad_out, activation).out * grad_out).sum().item<double>();
        },
        gate_up, run(gate_up, grad_out, activation).grad, "gate_up");
  }
}

TEST(Swiglu, TheGeluIsThatOfLibtorch) {
  const at::Tensor gate_up = (random_tensor({50, 20}, 7) * 3).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({50, 10}, 8).to(at::kDouble);
  const auto halves = gate_up.chunk(2, 1);
  expect_close(run(gate_up, grad_out, Activation::gelu_tanh).out, at::gelu(halves[0], "tanh") * halves[1],
               1e-14, "out");
}

TEST(Swiglu, SaturatesWithoutOverflowAndPassesNanOn) {
  const at::Tensor gate_up = at::empty({1, 8});
  const std::vector<float> values = {1000, -1000, 90, std::numeric_limits<float>::quiet_NaN(), 1, 1, 2, 1};
  std::copy(values.begin(), values.end(), gate_up.mutable_data_ptr<float>());
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    const SwigluResults r = run(gate_up, at::empty({1, 4}).fill_(1), activation);
    const auto* out = r.out.const_data_ptr<float>();
    EXPECT_EQ(out[0], 1000.0F);
    EXPECT_NEAR(out[1], 0.0F, 1e-30F);
    EXPECT_EQ(out[2], 180.0F);
    EXPECT_TRUE(std::isnan(out[3]));
    EXPECT_TRUE(r.grad.slice(1, 0, 3).isfinite().all().item<bool>());
  }
}

TEST(Swiglu, BackwardMayWriteOverItsInput) {
  const at::Tensor gate_up = random_tensor({20, 64}, 5);
  const at::Tensor grad_out = random_tensor({20, 32}, 6);
  const SwigluResults expected = run(gate_up, grad_out);
  swiglu_backward(grad_out, gate_up, gate_up);
  EXPECT_TRUE(at::equal(gate_up, expected.grad));
}

}  // namespace
}  // namespace stepforge::testing
