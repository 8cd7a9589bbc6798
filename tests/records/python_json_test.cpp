// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/python_json.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(PythonJson, WordsThatAreNoJsonAreNullOutsideOfStrings) {
  EXPECT_EQ(with_null_for_nan(R"({"a": NaN, "NaN": "NaN \" -Infinity", "b": [Infinity, -Infinity]})"),
            R"({"a": null, "NaN": "NaN \" -Infinity", "b": [null, null]})");
  for (const char* plain : {"{}", R"({"a": "NaN"})", R"({"Infinity": 1})", "\"NaN", ""})
    EXPECT_EQ(with_null_for_nan(plain), std::nullopt) << plain;
}

}  // namespace
}  // namespace stepforge::testing
