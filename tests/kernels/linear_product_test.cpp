// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/linear_product.h"

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/cpu/bf16_product.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/modelspec/kernel_tiles.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

at::Tensor product_of(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  linear_product(x, weight, out);
  return out;
}

constexpr int64_t kFew = 8;  ///< rows of which the product is a kernel's

TEST(LinearProduct, AgreesWithTheFp64Reference) {
  for (const int64_t rows : {int64_t{1}, int64_t{3}, kFew, kFew + 1}) {
    for (const int64_t depth : {1, 17, 96, 770}) {
      for (const int64_t outputs : {1, 4, 11, 300}) {
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
          const at::Tensor x = random_tensor({rows, depth}, 1).to(type);
          const at::Tensor weight = random_tensor({outputs, depth}, 2).to(type);
          const at::Tensor expected = at::empty({rows, outputs}, at::kDouble);
          reference::linear_product(x.to(at::kDouble), weight.to(at::kDouble), expected);
          expect_close(product_of(x, weight), expected, type == at::kFloat ? 32 * kEps32 : kEps16, "out");
        }
      }
    }
  }
}

TEST(LinearProduct, OfFewRowsGivesEachRowTheBitsThatItHasAlone) {
  const at::Tensor weight = random_tensor({37, 129}, 1);
  const at::Tensor x = random_tensor({kFew, 129}, 2);
  const at::Tensor all = product_of(x, weight);
  for (int64_t row = 0; row < kFew; ++row) {
    EXPECT_TRUE(at::equal(product_of(x.slice(0, row, row + 1), weight), all.slice(0, row, row + 1)));
  }
}

TEST(LinearProduct, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor weight = random_tensor({515, 200}, 1);
  for (const int64_t rows : {2, 64}) {
    const at::Tensor x = random_tensor({rows, 200}, 2);
    expect_same_for_all_threads([&]() -> std::vector<at::Tensor> { return {product_of(x, weight)}; });
  }
}

/// Small integers: products and sums of them are exact in any order.
at::Tensor integers(at::IntArrayRef shape, uint64_t seed, at::ScalarType type) {
  return (random_tensor(shape, seed) * 2).round().to(type);
}

struct Sizes {
  int64_t rows;
  int64_t depth;
  int64_t outputs;
};
/// Around the sizes of packed parts: 192 rows, 64 columns, 256 or 1,024 columns at a time, 256 words of depth; odd ones too.
const std::vector<Sizes> kSizes = {{9, 16, 16},    {16, 33, 64},   {191, 511, 63},  {192, 512, 64},
                                   {193, 513, 65}, {410, 34, 257}, {17, 1030, 200}, {40, 96, 1100},
                                   {2051, 40, 48}, {33, 2, 3}};

TEST(LinearProduct, OfIntegersIsExact) {
  for (const Sizes& s : kSizes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = integers({s.rows, s.depth}, 1, type);
      const at::Tensor weight = integers({s.outputs, s.depth}, 2, type);
      const at::Tensor expected = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t()).to(type);
      EXPECT_TRUE(at::equal(product_of(x, weight), expected)) << s.rows << " " << s.depth << " " << s.outputs;
    }
  }
}

TEST(LinearInputGradient, OfIntegersIsExactAndAddsTheSummandBeforeItRounds) {
  for (const Sizes& s : kSizes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor grad_out = integers({s.rows, s.outputs}, 1, type);
      const at::Tensor weight = integers({s.outputs, s.depth}, 2, type);
      const at::Tensor product = at::matmul(grad_out.to(at::kDouble), weight.to(at::kDouble));
      const at::Tensor result = at::empty({s.rows, s.depth}, at::TensorOptions(type));
      linear_input_gradient(grad_out, weight, {}, result);
      EXPECT_TRUE(at::equal(result, product.to(type))) << s.rows << " " << s.depth << " " << s.outputs;
      const at::Tensor summand = integers({s.rows, s.depth}, 3, type);
      linear_input_gradient(grad_out, weight, summand, result);
      const at::Tensor sum = (product + summand.to(at::kDouble)).to(type);
      EXPECT_TRUE(at::equal(result, sum)) << s.rows << " " << s.depth << " " << s.outputs;
      linear_input_gradient(grad_out, weight, summand, summand);
      EXPECT_TRUE(at::equal(summand, sum)) << s.rows << " " << s.depth << " " << s.outputs;
    }
  }
}

TEST(LinearWeightGradient, OfIntegersIsExactInFp32AndAccumulates) {
  for (const Sizes& s : kSizes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor grad_out = integers({s.rows, s.outputs}, 1, type);
      const at::Tensor x = integers({s.rows, s.depth}, 2, type);
      const at::Tensor expected = at::matmul(grad_out.to(at::kDouble).t(), x.to(at::kDouble)).to(at::kFloat);
      const at::Tensor result = at::empty({s.outputs, s.depth}, at::kFloat);
      linear_weight_gradient(grad_out, x, result, false);
      EXPECT_TRUE(at::equal(result, expected)) << s.rows << " " << s.depth << " " << s.outputs;
      linear_weight_gradient(grad_out, x, result, true);
      EXPECT_TRUE(at::equal(result, expected * 2)) << s.rows << " " << s.depth << " " << s.outputs;
    }
  }
}

TEST(LinearProduct, OfBf16GivesEachRowTheBitsThatItHasAmongOthers) {
  const at::Tensor weight = random_tensor({257, 700}, 1).to(at::kBFloat16);
  const at::Tensor x = random_tensor({300, 700}, 2).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(product_of(x.slice(0, 100, 140), weight), product_of(x, weight).slice(0, 100, 140)));
}

TEST(LinearGradients, OfBf16PackAsMuchAsTheCostOfALinearCallSays) {
  if (cpu::bf16_blocks() == cpu::Bf16Blocks::none) GTEST_SKIP() << "libtorch's products";
  install_cpu_allocator();
  for (const Sizes& s : kSizes) {
    const at::Tensor grad_out = integers({s.rows, s.outputs}, 1, at::kBFloat16);
    const at::Tensor weight = integers({s.outputs, s.depth}, 2, at::kBFloat16);
    const at::Tensor x = integers({s.rows, s.depth}, 3, at::kBFloat16);
    const at::Tensor out = at::empty({s.rows, s.outputs}, at::kBFloat16);
    const at::Tensor grad_x = at::empty({s.rows, s.depth}, at::kBFloat16);
    const at::Tensor grad_weight = at::empty({s.outputs, s.depth}, at::kFloat);
    const auto packed = [](const auto& product) {
      reset_cpu_peak();
      const int64_t before = cpu_memory().live_bytes;
      product();
      return cpu_memory().peak_bytes - before;
    };
    EXPECT_EQ(packed([&] { linear_product(x, weight, out); }),
              4 * cpu::bf16_product_words(s.depth, s.outputs));
    EXPECT_EQ(packed([&] { linear_input_gradient(grad_out, weight, {}, grad_x); }),
              4 * cpu::bf16_product_words(s.outputs, s.depth));
    EXPECT_EQ(packed([&] { linear_weight_gradient(grad_out, x, grad_weight, false); }),
              4 * cpu::bf16_product_words(std::min(s.rows, cpu::kBf16ProductTokens), s.depth));
  }
}

TEST(LinearGradients, DoNotDependOnTheNumberOfThreads) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor grad_out = random_tensor({300, 515}, 1).to(type);
    const at::Tensor weight = random_tensor({515, 200}, 2).to(type);
    const at::Tensor x = random_tensor({300, 200}, 3).to(type);
    expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
      const at::Tensor input = at::empty({300, 200}, at::TensorOptions(type));
      const at::Tensor gradient = at::empty({515, 200}, at::kFloat);
      linear_input_gradient(grad_out, weight, {}, input);
      linear_weight_gradient(grad_out, x, gradient, false);
      return {product_of(x, weight), input, gradient};
    });
  }
}

TEST(LinearProduct, OfNoRowsIsEmpty) {
  EXPECT_EQ(product_of(at::empty({0, 5}), random_tensor({3, 5}, 1)).numel(), 0);
}

TEST(LinearProduct, OfAnotherDepthIsRefused) {
  EXPECT_THROW(product_of(random_tensor({2, 4}, 1), random_tensor({3, 5}, 2)), Error);
}

}  // namespace
}  // namespace stepforge::testing
