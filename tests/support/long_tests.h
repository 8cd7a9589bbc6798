// SPDX-License-Identifier: Apache-2.0
// Whether to run long tests. A long test has "LongTest" in its name, which gives it the CTest label `long`.
#pragma once

#include <cstdlib>
#include <string>

namespace stepforge::testing {

inline bool long_tests() {
  const char* wanted = std::getenv("STEPFORGE_LONG_TESTS");
  return wanted != nullptr && std::string(wanted) == "1";
}

}  // namespace stepforge::testing
