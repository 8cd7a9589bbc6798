// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

// MKL's choice of kernels; 0 are the generic ones for processors of other vendors.
extern "C" int mkl_serv_cpu_detect();

namespace stepforge::testing {
namespace {

TEST(MatrixProducts, UseAvx512KernelsOnEveryProcessorWithAvx512) {
  if (!__builtin_cpu_supports("avx512bw")) GTEST_SKIP() << "no AVX-512 on this processor";
  EXPECT_NE(mkl_serv_cpu_detect(), 0);
}

}  // namespace
}  // namespace stepforge::testing
