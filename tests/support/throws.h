// The message of the exception that a call must throw.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace stepforge::testing {

/// Calls `body`; returns the text of the `Exception` it throws. Anything else fails the test.
template <typename Exception, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Exception& failure) {
    return failure.what();
  } catch (const std::exception& failure) {
    ADD_FAILURE() << "another exception: " << failure.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

}  // namespace stepforge::testing
