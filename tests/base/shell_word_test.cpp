// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/shell_word.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(ShellWord, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(shell_word("data/a-1.txt"), "data/a-1.txt");
  EXPECT_EQ(shell_word("my data.txt"), "'my data.txt'");
  EXPECT_EQ(shell_word("$(rm)\"*"), "'$(rm)\"*'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace stepforge::testing
