// SPDX-License-Identifier: Apache-2.0
// The guide's first program is the example, which is built against the installed package.
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

TEST(FullyShardGuide, BeginsWithTheWholeExampleProgram) {
  std::istringstream program(read_file(source_dir() / "examples" / "custom_loop.cpp"));
  std::string indented;
  for (std::string line; std::getline(program, line);) indented += (line.empty() ? "" : "    " + line) + "\n";
  const std::string guide = read_file(source_dir() / "docs" / "fully-shard.md");
  EXPECT_NE(guide.find(indented), std::string::npos)
      << "copy examples/custom_loop.cpp into docs/fully-shard.md";
}

}  // namespace
}  // namespace stepforge::testing
