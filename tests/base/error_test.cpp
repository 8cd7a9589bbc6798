// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/error.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(ErrorTypes, CarryTheirExitCode) {
  EXPECT_EQ(Error("x").exit_code(), ExitCode::failure);
  EXPECT_EQ(FormatError("x").exit_code(), ExitCode::failure);
  EXPECT_EQ(UsageError("x").exit_code(), ExitCode::usage);
}

}  // namespace
}  // namespace stepforge::testing
