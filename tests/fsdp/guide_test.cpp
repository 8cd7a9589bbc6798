// SPDX-License-Identifier: Apache-2.0
// The guide's programs are the examples, which are built against the installed package.
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

/// Whether the guide has this example as an indented block.
::testing::AssertionResult guide_has(const std::string& example) {
  std::istringstream program(read_file(source_dir() / "examples" / example));
  std::string indented;
  for (std::string line; std::getline(program, line);) indented += (line.empty() ? "" : "    " + line) + "\n";
  if (read_file(source_dir() / "docs" / "fully-shard.md").find(indented) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "copy examples/" << example << " into docs/fully-shard.md";
}

TEST(FullyShardGuide, HasWholeExamplePrograms) {
  EXPECT_TRUE(guide_has("custom_loop.cpp"));
  EXPECT_TRUE(guide_has("tensor_parallel.cpp"));
}

}  // namespace
}  // namespace stepforge::testing
