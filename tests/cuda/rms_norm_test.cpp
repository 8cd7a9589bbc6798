// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/rms_norm.h"

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

constexpr double kNormEps = 1e-5;

struct NormCase {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor grad_out;
  at::Tensor residual;
  double offset = 0.0;
};

NormCase norm_case(int64_t rows, int64_t width, at::ScalarType type, at::ScalarType weight_type) {
  return {.x = random_tensor({rows, width}, 1).to(type),
          .weight = random_tensor({width}, 2).to(weight_type),
          .grad_out = random_tensor({rows, width}, 3).to(type),
          .residual = random_tensor({rows, width}, 4).to(type)};
}

/// out, rstd, grad_x, grad_weight.
std::vector<at::Tensor> norm_on_device(const NormCase& c, int64_t shift = 0) {
  const at::ScalarType type = c.x.scalar_type();
  const int64_t rows = c.x.size(0);
  const int64_t width = c.x.size(1);
  const Guarded x(c.x, shift);
  const Guarded weight(c.weight, shift);
  const Guarded grad_out(c.grad_out, shift);
  const Guarded residual(c.residual.defined() ? c.residual : at::empty({0}, type), shift);
  const Guarded out({rows, width}, type, shift);
  const Guarded rstd({rows}, at::kFloat);
  const Guarded grad_x({rows, width}, type, shift);
  const Guarded grad_weight({width}, at::kFloat);
  const Guarded workspace({cuda::workspace_of(rows, width)}, at::kFloat);
  const cuda::RmsNorm norm{.type = dtype_of(c.x),
                           .rows = rows,
                           .width = width,
                           .weight = weight.data(),
                           .weight_type = dtype_of(c.weight),
                           .offset = c.offset};
  cuda::rms_norm_forward(norm, x.data(), kNormEps, out.data(), rstd.data<float>(), nullptr);
  cuda::rms_norm_backward(norm, grad_out.data(), x.data(), rstd.data<float>(),
                          c.residual.defined() ? residual.data() : nullptr, grad_x.data(),
                          grad_weight.data<float>(), workspace.data<float>(), nullptr);
  return {out.copy(), rstd.copy(), grad_x.copy(), grad_weight.copy()};
}

std::vector<at::Tensor> norm_reference(const NormCase& c) {
  const at::Tensor x = wide(c.x);
  std::vector<at::Tensor> r = {at::empty_like(x), at::empty({x.size(0)}, at::kDouble), at::empty_like(x),
                               at::empty({x.size(1)}, at::kDouble)};
  reference::rms_norm_forward(x, wide(c.weight), kNormEps, r[0], r[1], c.offset);
  reference::rms_norm_backward(wide(c.grad_out), x, wide(c.weight), r[1], wide(c.residual), r[2], r[3],
                               c.offset);
  return r;
}

/// fp32: a thread adds up to 16 squares, then ten more sums: an error of about 5 unit roundoffs, halved by the root; 4 products.
/// bf16: the rounding of the result. The weight's gradient is a sum over rows of terms with random signs.
void expect_norm(const NormCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return norm_on_device(c, shift); });
  const auto expected = norm_reference(c);
  const double tolerance = tolerance_of(c.x.scalar_type(), 32);
  expect_close(actual[0], expected[0], tolerance, "out");
  expect_close(actual[1], expected[1], 16 * kEps32, "rstd");
  expect_close(actual[2], expected[2], tolerance, "grad_x");
  expect_close(actual[3], expected[3], 64 * kEps32, "grad_weight");
}

TEST(CudaRmsNorm, AgreesWithTheFp64Reference) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {0, 1, 5, 33}) {
      expect_norm(norm_case(rows, width, at::kFloat, at::kFloat));
      expect_norm(norm_case(rows, width, at::kBFloat16, at::kBFloat16));
      expect_norm(norm_case(rows, width, at::kBFloat16, at::kFloat));
    }
  }
}

TEST(CudaRmsNorm, RowsWiderThanSharedMemoryAgreeToo) {
  expect_norm(norm_case(19, 8200, at::kBFloat16, at::kFloat));
}

TEST(CudaRmsNorm, OffsetAndMissingResidualAgreeWithTheFp64Reference) {
  NormCase c = norm_case(18, 100, at::kFloat, at::kFloat);
  c.offset = 1.0;
  expect_norm(c);
  c.residual = at::Tensor();
  expect_norm(c);
}

TEST(CudaRmsNorm, MemoryNeedNotBeAligned) {
  expect_norm(norm_case(3, 64, at::kFloat, at::kFloat), /*shift=*/1);
  expect_norm(norm_case(3, 64, at::kBFloat16, at::kBFloat16), /*shift=*/1);
}

TEST(CudaRmsNorm, MoreRowsThanBlocksAreAllComputed) {
  expect_norm(norm_case(2 * cuda::kMaxBlocks + 3, 4, at::kFloat, at::kFloat));
}

TEST(CudaRmsNorm, BackwardMayWriteOverItsGradients) {
  const NormCase c = norm_case(20, 36, at::kFloat, at::kFloat);
  const auto expected = norm_on_device(c);
  for (const bool over_residual : {false, true}) {
    const Guarded x(c.x);
    const Guarded weight(c.weight);
    const Guarded grad_out(c.grad_out);
    const Guarded residual(c.residual);
    const Guarded rstd(expected[1]);
    const Guarded grad_weight({36}, at::kFloat);
    const Guarded workspace({cuda::workspace_of(20, 36)}, at::kFloat);
    const Guarded& grad_x = over_residual ? residual : grad_out;
    cuda::rms_norm_backward({.rows = 20, .width = 36, .weight = weight.data()}, grad_out.data(), x.data(),
                            rstd.data<float>(), residual.data(), grad_x.data(), grad_weight.data<float>(),
                            workspace.data<float>(), nullptr);
    EXPECT_TRUE(same_bits(grad_x.tensor(), expected[2]));
    EXPECT_TRUE(same_bits(grad_weight.tensor(), expected[3]));
  }
}

}  // namespace
}  // namespace stepforge::testing
