// SPDX-License-Identifier: Apache-2.0
// main() of all test programs. It ends the process without running the destructors of globals: libtorch's take
// longer than most tests. A sanitizer, which looks for leaks at the end, gets the usual end.
#include <cstdio>
#include <iostream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/sanitizer.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  if (stepforge::testing::kSanitizer) return failed;
  std::cout.flush();
  std::fflush(nullptr);
  _exit(failed);
}
