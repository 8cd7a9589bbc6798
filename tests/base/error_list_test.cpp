// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/error_list.h"

#include <gtest/gtest.h>

#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(ErrorList, AnEmptyListThrowsNothing) {
  EXPECT_NO_THROW(ErrorList("a.json").throw_if_any());
}

TEST(ErrorList, OneErrorTakesOneLineAndSeveralALineEach) {
  ErrorList errors("a.json");
  errors.add("first");
  EXPECT_EQ(message_of<FormatError>([&] { errors.throw_if_any(); }), "a.json: first");
  errors.add("second");
  EXPECT_EQ(message_of<UsageError>([&] { errors.throw_if_any<UsageError>(); }),
            "a.json: 2 errors:\n  first\n  second");
}

TEST(ErrorList, ErrorsThatNameTheirPlacesStandAlone) {
  ErrorList errors = ErrorList::with_places("the model");
  errors.add("a.json: first");
  EXPECT_EQ(errors.message(), "a.json: first");
  errors.add("b.json: second");
  EXPECT_EQ(errors.message(), "2 errors in the model:\n  a.json: first\n  b.json: second");
}

TEST(ErrorList, KeepsTheFirstHundredAndCountsTheRest) {
  ErrorList errors("a.json");
  for (int i = 0; i < 103; ++i) errors.add("error");
  EXPECT_EQ(errors.size(), 103U);
  EXPECT_TRUE(errors.message().starts_with("a.json: 103 errors:\n"));
  EXPECT_TRUE(errors.message().ends_with("\n  and 3 more"));
}

}  // namespace
}  // namespace stepforge::testing
