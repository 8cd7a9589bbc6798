// EXPECT_THROW_WITH(call, Exception, {"part", ...}): the call throws, and its message holds every part.
#pragma once

#include <string>
#include <vector>

#include "tests/support/throws.h"

namespace stepforge {

inline ::testing::AssertionResult contains_all(const std::string& text,
                                               const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (const auto found = testing::contains(text, part); !found) return found;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace stepforge

#define EXPECT_THROW_WITH(call, exception, ...)                                      \
  EXPECT_TRUE(::stepforge::contains_all(                                             \
      ::stepforge::testing::message_of<exception>([&] { static_cast<void>(call); }), \
      std::vector<std::string> __VA_ARGS__))
