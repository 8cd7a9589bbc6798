// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/temporary_folder.h"

#include <optional>

#include <gtest/gtest.h>

#include "stepforge/base/staged.h"

namespace stepforge::testing {
namespace {

TEST(TemporaryFolder, IsNewAndGoesWithItsContents) {
  std::optional<TemporaryFolder> first(std::in_place, "test");
  const TemporaryFolder second("test");
  EXPECT_NE(first->path(), second.path());
  EXPECT_TRUE(first->path().filename().string().starts_with("stepforge-test-"));
  EXPECT_TRUE(std::filesystem::is_empty(first->path()));
  write_file_atomic(first->path() / "file", "text");
  const std::filesystem::path gone = first->path();
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(gone));
  EXPECT_TRUE(std::filesystem::exists(second.path()));
}

}  // namespace
}  // namespace stepforge::testing
