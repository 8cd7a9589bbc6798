// SPDX-License-Identifier: Apache-2.0
// main() of the tests that load libtorch. It ends the process without running libtorch's destructors, which take
// longer than most tests.
#include <cstdio>
#include <iostream>

#include <gtest/gtest.h>
#include <unistd.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  std::cout.flush();
  std::fflush(nullptr);
  _exit(failed);
}
