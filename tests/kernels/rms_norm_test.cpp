// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rms_norm.h"

#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr double kEpsilon = 1e-5;

struct NormResults {
  at::Tensor out;
  at::Tensor rstd;
  at::Tensor grad_x;
  at::Tensor grad_weight;
};

NormResults run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad_out,
                const at::Tensor& residual, double offset = 0.0) {
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  NormResults r;
  r.out = at::empty_like(x);
  r.rstd = at::empty({x.size(0)}, x.options().dtype(type));
  r.grad_x = at::empty_like(x);
  r.grad_weight = at::empty({x.size(1)}, x.options().dtype(type));
  rms_norm_forward(x, weight, kEpsilon, r.out, r.rstd, offset);
  rms_norm_backward(grad_out, x, weight, r.rstd, residual, r.grad_x, r.grad_weight, offset);
  return r;
}

TEST(RmsNorm, AgreesWithTheFp64Reference) {
  for (const int64_t width : {1, 7, 64, 257}) {
    for (const int64_t rows : {1, 33, 300}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = random_tensor({rows, width}, 1).to(type);
        const at::Tensor weight = random_tensor({width}, 2).to(type);
        const at::Tensor grad_out = random_tensor({rows, width}, 3).to(type);
        const at::Tensor residual = random_tensor({rows, width}, 4).to(type);
        const NormResults actual = run(x, weight, grad_out, residual);
        const NormResults expected = run(x.to(at::kDouble), weight.to(at::kDouble), grad_out.to(at::kDouble),
                                         residual.to(at::kDouble));
        const double tolerance = type == at::kFloat ? 32 * kEps32 : kEps16;
        expect_close(actual.out, expected.out, tolerance, "out");
        expect_close(actual.rstd, expected.rstd, 16 * kEps32, "rstd");
        expect_close(actual.grad_x, expected.grad_x, tolerance, "grad_x");
        expect_close(actual.grad_weight, expected.grad_weight, 64 * kEps32, "grad_weight");
      }
    }
  }
}

TEST(RmsNorm, AnOffsetIsAddedToTheWeight) {
  const at::Tensor x = random_tensor({70, 37}, 1);
  const at::Tensor weight = random_tensor({37}, 2);
  const at::Tensor grad_out = random_tensor({70, 37}, 3);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const NormResults added = run(x.to(type), weight.to(type), grad_out.to(type), {}, 1.0);
    const NormResults whole = run(x.to(type), weight.to(type) + 1.0, grad_out.to(type), {});
    EXPECT_TRUE(at::equal(added.out, whole.out));
    EXPECT_TRUE(at::equal(added.grad_x, whole.grad_x));
    EXPECT_TRUE(at::equal(added.grad_weight, whole.grad_weight));
  }
}

TEST(RmsNorm, ReferenceGradientIsTheDerivative) {
  const at::Tensor x = random_tensor({5, 12}, 5).to(at::kDouble);
  const at::Tensor weight = random_tensor({12}, 6).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({5, 12}, 7).to(at::kDouble);
  const NormResults exact = run(x, weight, grad_out, {});
  const auto loss = [&](const at::Tensor& input, const at::Tensor& scale) {
    return (run(input, scale, grad_out, {}).out * grad_out).sum().item<double>();
  };
  expect_derivative([&](const at::Tensor& input) { return loss(input, weight); }, x, exact.grad_x, "x");
  expect_derivative([&](const at::Tensor& scale) { return loss(x, scale); }, weight, exact.grad_weight,
                    "weight");
}

TEST(RmsNorm, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = random_tensor({1003, 65}, 8);
  const at::Tensor weight = random_tensor({65}, 9);
  const at::Tensor grad_out = random_tensor({1003, 65}, 10);
  expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
    const NormResults r = run(x, weight, grad_out, {});
    return {r.out, r.rstd, r.grad_x, r.grad_weight};
  });
}

TEST(RmsNorm, BackwardMayWriteOverItsGradient) {
  const at::Tensor x = random_tensor({40, 32}, 11);
  const at::Tensor weight = random_tensor({32}, 12);
  const at::Tensor grad_out = random_tensor({40, 32}, 13);
  const NormResults expected = run(x, weight, grad_out, {});
  const at::Tensor in_place = grad_out.clone();
  const at::Tensor grad_weight = at::empty_like(weight);
  rms_norm_backward(in_place, x, weight, expected.rstd, {}, in_place, grad_weight);
  EXPECT_TRUE(at::equal(in_place, expected.grad_x));
  EXPECT_TRUE(at::equal(grad_weight, expected.grad_weight));
}

TEST(RmsNorm, NamesTheArgumentWithTheWrongShape) {
  const at::Tensor x = random_tensor({4, 8}, 14);
  try {
    rms_norm_forward(x, random_tensor({7}, 15), kEpsilon, at::empty_like(x), at::empty({4}));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rms_norm weight: expected shape [8], got [7]");
  }
}

}  // namespace
}  // namespace stepforge::testing
