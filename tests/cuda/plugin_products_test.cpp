// SPDX-License-Identifier: Apache-2.0
// Gradients of weights, with a stand-in for libtorch's products with an output type, which exist for CUDA only.
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include "stepforge/cuda/plugin/kernels.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

/// Calls of the stand-ins.
struct ProductCalls {
  int overwriting = 0;
  int adding = 0;
};

ProductCalls& product_calls() {
  static ProductCalls calls;
  return calls;
}

at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b) {
  return at::matmul(a.to(at::kDouble), b.to(at::kDouble));
}

/// What libtorch checks.
void check_types(const at::Tensor& a, const at::Tensor& b, at::ScalarType type, const at::Tensor& out) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  EXPECT_EQ(a.scalar_type(), at::kBFloat16);
  EXPECT_EQ(type, at::kFloat);
  EXPECT_EQ(out.scalar_type(), type);
}

at::Tensor& mm_dtype_out(const at::Tensor& self, const at::Tensor& mat2, at::ScalarType out_dtype,
                         at::Tensor& out) {
  ++product_calls().overwriting;
  check_types(self, mat2, out_dtype, out);
  return out.copy_(wide_product(self, mat2));
}

at::Tensor& addmm_dtype_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                            at::ScalarType out_dtype, const at::Scalar& beta, const at::Scalar& alpha,
                            at::Tensor& out) {
  ++product_calls().adding;
  check_types(mat1, mat2, out_dtype, out);
  EXPECT_TRUE(self.is_same(out)) << "otherwise libtorch copies it";
  EXPECT_EQ(self.scalar_type(), out_dtype);
  return out.copy_(self.to(at::kDouble) * beta.toDouble() + wide_product(mat1, mat2) * alpha.toDouble());
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("mm.dtype_out", &mm_dtype_out);
  library.impl("addmm.dtype_out", &addmm_dtype_out);
}

std::pair<int, int> product_calls_of(const auto& run) {
  const ProductCalls before = product_calls();
  run();
  return {product_calls().overwriting - before.overwriting, product_calls().adding - before.adding};
}

at::Tensor weight_before(at::IntArrayRef shape, bool accumulate) {
  return accumulate ? random_tensor(shape, 3) : at::full(shape, NAN, at::kFloat);
}

TEST(CudaProducts, GradientsOfWeightsAreNeverRoundedToTheTypeOfTheFactors) {
  const at::Tensor grad_out = random_tensor({37, 12}, 1).to(at::kBFloat16);
  const at::Tensor x = random_tensor({37, 20}, 2).to(at::kBFloat16);
  for (const bool accumulate : {false, true}) {
    const at::Tensor before = weight_before({12, 20}, accumulate);
    const at::Tensor actual = before.clone();
    const auto calls =
        product_calls_of([&] { cuda_plugin::linear_weight_gradient(grad_out, x, actual, accumulate); });
    EXPECT_EQ(calls, (accumulate ? std::pair(0, 1) : std::pair(1, 0)));
    const at::Tensor product = wide_product(grad_out.t(), x);
    const at::Tensor expected = accumulate ? before.to(at::kDouble) + product : product;
    expect_close(actual, expected, 2 * kEps32, "grad_weight");
  }
}

TEST(CudaProducts, OfFp32AndFp64AreTheReferences) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const bool accumulate : {false, true}) {
      const at::Tensor grad_out = random_tensor({9, 4}, 1).to(type);
      const at::Tensor x = random_tensor({9, 6}, 2).to(type);
      const std::vector<int64_t> offsets = {0, 5, 5, 9};
      const at::Tensor one = weight_before({4, 6}, accumulate).to(type);
      const at::Tensor some = weight_before({3, 4, 6}, accumulate).to(type);
      const at::Tensor expected_one = one.clone();
      const at::Tensor expected_some = some.clone();
      const auto calls = product_calls_of([&] {
        cuda_plugin::linear_weight_gradient(grad_out, x, one, accumulate);
        cuda_plugin::grouped_weight_gradient(grad_out, x, offsets, some, accumulate);
      });
      EXPECT_EQ(calls, std::pair(0, 0));
      reference::linear_weight_gradient(grad_out, x, expected_one, accumulate);
      reference::grouped_weight_gradient(grad_out, x, offsets, expected_some, accumulate);
      EXPECT_TRUE(at::equal(one, expected_one));
      EXPECT_TRUE(at::equal(some, expected_some));
    }
  }
}

/// Experts without rows: their gradients are 0, or stay.
TEST(CudaProducts, OfExpertsHaveACallForEachExpertThatHasRows) {
  const std::vector<int64_t> offsets = {0, 0, 7, 7, 30, 30};
  const at::Tensor grad_out = random_tensor({30, 12}, 1).to(at::kBFloat16);
  const at::Tensor x = random_tensor({30, 20}, 2).to(at::kBFloat16);
  for (const bool accumulate : {false, true}) {
    const at::Tensor before = weight_before({5, 12, 20}, accumulate);
    const at::Tensor actual = before.clone();
    const auto calls = product_calls_of(
        [&] { cuda_plugin::grouped_weight_gradient(grad_out, x, offsets, actual, accumulate); });
    EXPECT_EQ(calls, (accumulate ? std::pair(0, 2) : std::pair(2, 0)));
    at::Tensor expected = accumulate ? before.to(at::kDouble) : at::full({5, 12, 20}, 0.0, at::kDouble);
    for (const int64_t expert : {1, 3}) {
      const int64_t begin = offsets[static_cast<size_t>(expert)];
      const int64_t end = offsets[static_cast<size_t>(expert) + 1];
      expected[expert].add_(wide_product(grad_out.slice(0, begin, end).t(), x.slice(0, begin, end)));
    }
    expect_close(actual, expected, 2 * kEps32, "grad_weights");
    for (const int64_t expert : {0, 2, 4})
      EXPECT_TRUE(at::equal(actual[expert], expected[expert].to(at::kFloat)));
  }
}

}  // namespace
}  // namespace stepforge::testing
