// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/scalars.h"

#include <limits>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a function and its reference write; they must be the same.
template <typename Function, typename... Arguments>
double written(Function function, Function reference, const Arguments&... arguments) {
  const at::Tensor result = scalar(7);
  const at::Tensor expected = scalar(7);
  function(arguments..., result);
  reference(arguments..., expected);
  EXPECT_EQ(result.item<double>(), expected.item<double>());
  return result.item<double>();
}

double clipped(double norm, double max_norm) {
  return written(clip_coefficient, reference::clip_coefficient, scalar(norm), max_norm);
}

double flag(double first, double second) {
  return written(flag_if_finite, reference::flag_if_finite, scalar(first), scalar(second));
}

TEST(Scalars, AReciprocalOfNoLabelsIsZero) {
  EXPECT_EQ(written(reciprocal_or_zero, reference::reciprocal_or_zero, scalar(8)), 0.125);
  EXPECT_EQ(written(reciprocal_or_zero, reference::reciprocal_or_zero, scalar(0)), 0.0);
}

TEST(Scalars, AMeanAddsInOrderAndIsZeroOfNoLabels) {
  const at::Tensor values = at::empty({3}, at::kDouble);
  values[0] = 0x1.0p60;
  values[1] = -0x1.0p60;
  values[2] = 3.0;
  EXPECT_EQ(written(mean_in_order, reference::mean_in_order, values, scalar(2)), 1.5);
  EXPECT_EQ(written(mean_in_order, reference::mean_in_order, values, scalar(0)), 0.0);
}

TEST(ClipCoefficient, ScalesDownToMaxNormAndZeroTurnsItOff) {
  EXPECT_EQ(clipped(0.5, 1.0), 1.0);
  EXPECT_EQ(clipped(4.0, 0.0), 1.0);
  EXPECT_EQ(clipped(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clipped(kNan, 1.0), 1.0);
}

TEST(Scalars, TheFlagIsUpIfBothNumbersAreFinite) {
  EXPECT_EQ(flag(1.0, 2.0), 1.0);
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    EXPECT_EQ(flag(bad, 2.0), 0.0);
    EXPECT_EQ(flag(1.0, bad), 0.0);
  }
}

TEST(Scalars, OtherTensorsAreRefused) {
  EXPECT_THROW(flag_if_finite(scalar(1), scalar(1), at::empty({1}, at::kDouble)), Error);
  EXPECT_THROW(clip_coefficient(at::empty({}, at::kFloat), 1.0, scalar(1)), Error);
}

}  // namespace
}  // namespace stepforge::testing
