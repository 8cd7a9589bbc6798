// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include "tests/kernels/compare.h"

// MKL's choice of kernels; 0 are the generic ones for processors of other vendors.
extern "C" int mkl_serv_cpu_detect();

namespace stepforge::testing {
namespace {

TEST(MatrixProducts, UseTheKernelsOfTheInstructionSetOnProcessorsOfAllVendors) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2 on this processor";
  EXPECT_NE(mkl_serv_cpu_detect(), 0);
}

/// By default some of these sizes do, on most processors.
TEST(MatrixProducts, DoNotDependOnTheNumberOfThreads) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2 on this processor";
  for (const int64_t rows : {32, 64, 128})
    for (const int64_t in : {24, 32, 60})
      for (const int64_t out : {18, 56, 96})
        for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
          const at::Tensor x = random_tensor({rows, in}, 1).to(type);
          const at::Tensor weight = random_tensor({out, in}, 2).to(type);
          const at::Tensor gradient = random_tensor({rows, out}, 3).to(type);
          expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
            return {at::mm(x, weight.t()), at::mm(gradient, weight), at::mm(gradient.t(), x)};
          });
        }
}

}  // namespace
}  // namespace stepforge::testing
