// SPDX-License-Identifier: Apache-2.0
// Numeric comparisons for the kernel tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "stepforge/base/random.h"
#include "tests/support/random_tensor.h"

namespace stepforge::testing {

constexpr double kEps32 = 0x1.0p-24;  ///< unit roundoff of fp32
constexpr double kEps16 = 0x1.0p-8;   ///< two unit roundoffs of bf16: that of the output and a margin

inline at::Tensor int_tensor(const std::vector<int32_t>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kInt);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int32_t>());
  return tensor;
}

/// max |actual - expected| / (|expected| + root mean square of expected) is at most `tolerance`.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const char* name) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
  if (actual.numel() == 0) return;
  const at::Tensor wanted = expected.to(at::kDouble);
  const double typical = std::sqrt(wanted.square().mean().item<double>()) + 1e-30;
  const double error =
      ((actual.to(at::kDouble) - wanted).abs() / (wanted.abs() + typical)).max().item<double>();
  EXPECT_LE(error, tolerance) << name;
}

/// `gradient` (fp64, shaped like x) is the derivative of `loss` at x along one random direction.
inline void expect_derivative(const std::function<double(const at::Tensor&)>& loss, const at::Tensor& x,
                              const at::Tensor& gradient, const char* name) {
  const at::Tensor direction = random_tensor(x.sizes(), 77).to(at::kDouble);
  constexpr double kStep = 1e-5;
  const double numeric = (loss(x + direction * kStep) - loss(x - direction * kStep)) / (2 * kStep);
  const double exact = (gradient * direction).sum().item<double>();
  EXPECT_NEAR(numeric, exact, 1e-7 * (std::abs(exact) + 1.0)) << name;
}

/// `compute` returns the same bits with 1, 2, 3 and 7 threads.
inline void expect_same_for_all_threads(const std::function<std::vector<at::Tensor>()>& compute) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = compute();
  for (const int threads : {2, 3, 7}) {
    at::set_num_threads(threads);
    const std::vector<at::Tensor> actual = compute();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(actual[i], expected[i])) << "output " << i << " with " << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

}  // namespace stepforge::testing
