// Whether tests that take long are wanted.
#pragma once

#include <cstdlib>
#include <string>

namespace stepforge::testing {

inline bool long_tests() {
  const char* wanted = std::getenv("STEPFORGE_LONG_TESTS");
  return wanted != nullptr && std::string(wanted) == "1";
}

}  // namespace stepforge::testing
