// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/grouped_product.h"

#include <limits>
#include <utility>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kGroupedIn = 24;
constexpr int64_t kGroupedOut = 40;

struct Products {
  at::Tensor out;
  at::Tensor grad_x;
  at::Tensor grad_weights;
};

/// `accumulate`: the gradient of weights is added to a tensor of ones.
Products run_grouped(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& grad_out,
                     const std::vector<int64_t>& offsets, bool accumulate = false) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Products p = {at::empty_like(grad_out), at::empty_like(x), at::full(weights.sizes(), 1.0, wide)};
  grouped_product(x, weights, offsets, p.out);
  grouped_input_gradient(grad_out, weights, offsets, p.grad_x);
  grouped_weight_gradient(grad_out, x, offsets, p.grad_weights, accumulate);
  return p;
}

/// Uneven experts, none with rows but one, the first and the last one empty, none with any.
std::vector<std::vector<int64_t>> all_offsets() {
  return {{0, 3, 4, 11, 60}, {0, 0, 700, 700, 700}, {0, 0, 300, 601, 601}, {0, 0, 0, 0, 0}, {0, 1, 2, 3, 4}};
}

TEST(GroupedProduct, AgreesWithTheFp64Reference) {
  for (const std::vector<int64_t>& offsets : all_offsets()) {
    const int64_t rows = offsets.back();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool accumulate : {false, true}) {
        const at::Tensor x = random_tensor({rows, kGroupedIn}, 1).to(type);
        const at::Tensor weights = random_tensor({4, kGroupedOut, kGroupedIn}, 2).to(type);
        const at::Tensor grad_out = random_tensor({rows, kGroupedOut}, 3).to(type);
        const Products actual = run_grouped(x, weights, grad_out, offsets, accumulate);
        const Products expected = run_grouped(x.to(at::kDouble), weights.to(at::kDouble),
                                              grad_out.to(at::kDouble), offsets, accumulate);
        const double tolerance = type == at::kFloat ? 64 * kEps32 : kEps16;
        expect_close(actual.out, expected.out, tolerance, "out");
        expect_close(actual.grad_x, expected.grad_x, tolerance, "grad_x");
        expect_close(actual.grad_weights, expected.grad_weights, 64 * kEps32, "grad_weights");
      }
    }
  }
}

/// Widths that fill no tile, and some.
TEST(GroupedProduct, AgreesWithTheFp64ReferenceBeyondATile) {
  const std::vector<int64_t> offsets = {0, 5, 1105, 1105, 1131};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1100, 70}, {64, 900}, {131, 129}, {2300, 40}}) {
      const at::Tensor x = random_tensor({1131, in}, 1).to(type);
      const at::Tensor weights = random_tensor({4, out, in}, 2).to(type);
      const at::Tensor grad_out = random_tensor({1131, out}, 3).to(type);
      const Products actual = run_grouped(x, weights, grad_out, offsets, /*accumulate=*/true);
      const Products expected = run_grouped(x.to(at::kDouble), weights.to(at::kDouble),
                                            grad_out.to(at::kDouble), offsets, /*accumulate=*/true);
      const double tolerance = type == at::kFloat ? 256 * kEps32 : kEps16;
      expect_close(actual.out, expected.out, tolerance, "out");
      expect_close(actual.grad_x, expected.grad_x, tolerance, "grad_x");
      expect_close(actual.grad_weights, expected.grad_weights, 256 * kEps32, "grad_weights");
    }
  }
}

TEST(GroupedProduct, ARowHasTheSameResultWhateverRowsItsExpertHas) {
  const at::Tensor x = random_tensor({301, 500}, 1);
  const at::Tensor weights = random_tensor({1, 90, 500}, 2);
  const at::Tensor grad_out = random_tensor({301, 90}, 3);
  const Products all = run_grouped(x, weights, grad_out, {0, 301});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {7, 20}, {290, 301}}) {
    const Products some =
        run_grouped(x.slice(0, begin, end), weights, grad_out.slice(0, begin, end), {0, end - begin});
    EXPECT_TRUE(some.out.equal(all.out.slice(0, begin, end))) << begin;
    EXPECT_TRUE(some.grad_x.equal(all.grad_x.slice(0, begin, end))) << begin;
  }
}

/// Sums of small integers are exact in fp32, so that only the last rounding remains; many are ties.
TEST(GroupedProduct, Bf16ResultsAreRoundedToNearestOnce) {
  const std::vector<int64_t> offsets = {0, 40, 75};
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{96, 64}, {1200, 70}}) {
    const auto integers = [](at::IntArrayRef shape, uint64_t seed) {
      return (random_tensor(shape, seed) * 4).round().to(at::kBFloat16);
    };
    at::Tensor x = integers({75, in}, 1);
    at::Tensor grad_out = integers({75, out}, 3);
    x[40].fill_(std::numeric_limits<float>::infinity());  // sums of the row: infinite, or not a number
    const at::Tensor weights = integers({2, out, in}, 2);
    const Products actual = run_grouped(x, weights, grad_out, offsets);
    const Products exact =
        run_grouped(x.to(at::kDouble), weights.to(at::kDouble), grad_out.to(at::kDouble), offsets);
    // oneDNN's products for AMX multiply what follows a row by zeros, so that the row before may not be a number either.
    EXPECT_TRUE(at::equal(actual.out.slice(0, 0, 39), exact.out.to(at::kBFloat16).slice(0, 0, 39))) << in;
    EXPECT_TRUE(at::equal(actual.out.slice(0, 41), exact.out.to(at::kBFloat16).slice(0, 41))) << in;
    EXPECT_FALSE(actual.out[40].isfinite().any().item<bool>()) << in;
    EXPECT_TRUE(at::equal(actual.grad_x, exact.grad_x.to(at::kBFloat16))) << in;
  }
}

/// Gradients that no cache keeps are written to memory: all of them here, and none of those of one expert.
TEST(GroupedProduct, LargeGradientsOfWeightsHaveTheBitsOfSmallOnes) {
  constexpr int64_t kManyExperts = 24;
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1024, 704}, {1000, 704}}) {
    const at::Tensor x = random_tensor({7 * kManyExperts, in}, 1).to(at::kBFloat16);
    const at::Tensor grad_out = random_tensor({7 * kManyExperts, out}, 2).to(at::kBFloat16);
    std::vector<int64_t> offsets;
    for (int64_t e = 0; e <= kManyExperts; ++e) offsets.push_back(7 * e);
    for (const bool accumulate : {false, true}) {
      const at::Tensor all = at::full({kManyExperts, out, in}, 1.0, at::kFloat);
      grouped_weight_gradient(grad_out, x, offsets, all, accumulate);
      for (int64_t e = 0; e < kManyExperts; ++e) {
        const at::Tensor one = at::full({1, out, in}, 1.0, at::kFloat);
        const std::vector<int64_t> rows{0, 7};
        grouped_weight_gradient(grad_out.slice(0, 7 * e, 7 * e + 7), x.slice(0, 7 * e, 7 * e + 7), rows, one,
                                accumulate);
        EXPECT_TRUE(at::equal(all.select(0, e), one.select(0, 0))) << in << ", expert " << e;
      }
    }
  }
}

TEST(GroupedProduct, ReferenceIsOneProductForEachRow) {
  const std::vector<int64_t> offsets = {0, 2, 2, 3, 5};
  const at::Tensor x = random_tensor({5, kGroupedIn}, 1).to(at::kDouble);
  const at::Tensor weights = random_tensor({4, kGroupedOut, kGroupedIn}, 2).to(at::kDouble);
  const at::Tensor grad_out = random_tensor({5, kGroupedOut}, 3).to(at::kDouble);
  const Products p = run_grouped(x, weights, grad_out, offsets);
  const std::vector<int64_t> experts = {0, 0, 2, 3, 3};
  at::Tensor grad_weights = at::full(weights.sizes(), 0.0, at::kDouble);
  for (int64_t n = 0; n < 5; ++n) {
    const at::Tensor weight = weights.select(0, experts[static_cast<size_t>(n)]);
    expect_close(p.out.select(0, n), weight.matmul(x.select(0, n)), 1e-14, "out");
    expect_close(p.grad_x.select(0, n), weight.t().matmul(grad_out.select(0, n)), 1e-14, "grad_x");
    grad_weights.select(0, experts[static_cast<size_t>(n)])
        .add_(grad_out.select(0, n).unsqueeze(1) * x.select(0, n).unsqueeze(0));
  }
  expect_close(p.grad_weights, grad_weights, 1e-14, "grad_weights");
}

TEST(GroupedProduct, GradientOfAnExpertWithoutRowsIsExactlyZeroOrUntouched) {
  const std::vector<int64_t> offsets = {0, 5, 5, 9, 9};
  const at::Tensor x = random_tensor({9, kGroupedIn}, 1);
  const at::Tensor weights = random_tensor({4, kGroupedOut, kGroupedIn}, 2);
  const at::Tensor grad_out = random_tensor({9, kGroupedOut}, 3);
  for (const bool accumulate : {false, true}) {
    const Products p = run_grouped(x, weights, grad_out, offsets, accumulate);
    for (const int64_t empty : {1, 3})
      EXPECT_TRUE(p.grad_weights.select(0, empty).eq(accumulate ? 1.0 : 0.0).all().item<bool>());
  }
}

TEST(GroupedProduct, DoesNotDependOnTheNumberOfThreads) {
  for (const std::vector<int64_t>& offsets : all_offsets()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random_tensor({offsets.back(), 200}, 1).to(type);
      const at::Tensor weights = random_tensor({4, 300, 200}, 2).to(type);
      const at::Tensor grad_out = random_tensor({offsets.back(), 300}, 3).to(type);
      expect_same_for_all_threads([&] {
        const Products p = run_grouped(x, weights, grad_out, offsets, /*accumulate=*/true);
        return std::vector<at::Tensor>{p.out, p.grad_x, p.grad_weights};
      });
    }
  }
}

TEST(GroupedProduct, RefusesOffsetsThatAreNotThoseOfItsRows) {
  const at::Tensor x = random_tensor({9, kGroupedIn}, 1);
  const at::Tensor weights = random_tensor({2, kGroupedOut, kGroupedIn}, 2);
  const at::Tensor out = at::empty({9, kGroupedOut});
  for (const std::vector<int64_t>& offsets :
       std::vector<std::vector<int64_t>>{{0, 4, 8}, {1, 4, 9}, {0, 10, 9}, {0, 9}, {}})
    EXPECT_THROW(grouped_product(x, weights, offsets, out), Error);
}

}  // namespace
}  // namespace stepforge::testing
