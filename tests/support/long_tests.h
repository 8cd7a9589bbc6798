// SPDX-License-Identifier: Apache-2.0
// Whether long tests are wanted. A case that runs only then has "LongTest" in its name, which gives it the CTest label `long`.
#pragma once

#include <cstdlib>
#include <string>

namespace stepforge::testing {

inline bool long_tests() {
  const char* wanted = std::getenv("STEPFORGE_LONG_TESTS");
  return wanted != nullptr && std::string(wanted) == "1";
}

}  // namespace stepforge::testing
