// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/linear_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
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

TEST(LinearProduct, OfNoRowsIsEmpty) {
  EXPECT_EQ(product_of(at::empty({0, 5}), random_tensor({3, 5}, 1)).numel(), 0);
}

TEST(LinearProduct, OfAnotherDepthIsRefused) {
  EXPECT_THROW(product_of(random_tensor({2, 4}, 1), random_tensor({3, 5}, 2)), Error);
}

}  // namespace
}  // namespace stepforge::testing
