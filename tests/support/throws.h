// SPDX-License-Identifier: Apache-2.0
// message_of: the message of the exception that a call must throw. EXPECT_CONTAINS: the parts that a text
// must contain.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stepforge::testing {

/// Calls `body` and returns the message of the `Exception` that it must throw.
template <typename Exception, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Exception& failure) {
    return failure.what();
  } catch (const std::exception& failure) {
    ADD_FAILURE() << "unexpected exception: " << failure.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

inline ::testing::AssertionResult contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
  }
  return ::testing::AssertionSuccess();
}
template <typename... Parts>
::testing::AssertionResult contains(const std::string& text, const std::string& part,
                                    const Parts&... others) {
  return contains(text, std::vector<std::string>{part, others...});
}

}  // namespace stepforge::testing

/// EXPECT_CONTAINS(text, part, ...): every part is in the text. A failure shows the missing part and the
/// text.
#define EXPECT_CONTAINS(...) EXPECT_TRUE(::stepforge::testing::contains(__VA_ARGS__))
#define ASSERT_CONTAINS(...) ASSERT_TRUE(::stepforge::testing::contains(__VA_ARGS__))
