// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/installation.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

class FindTorch : public ::testing::Test {
 private:
  TempFolder folder_;

 protected:
  fs::path root() const { return folder_.path(); }

  fs::path make_torch(const std::string& packages, const std::string& version) const {
    const std::string text = format("from typing import Optional\n\n__version__ = '{}'\n", version);
    return folder_.write(packages + "/torch/version.py", text).parent_path();
  }

  /// python3 in a folder that is then on PATH: a link to a file `python`.
  void make_python(const std::string& bin, const std::string& python) {
    const fs::path program = folder_.write(python, "");
    fs::create_directories(root() / bin);
    fs::create_symlink(program, root() / bin / "python3");
    search_.path += (search_.path.empty() ? "" : ":") + (root() / bin).string();
  }

  TorchSearch search_{.built_for = "2.11.0",
                      .given = "",
                      .virtual_env = "",
                      .path = "",
                      .home = folder_.path() / "home",
                      .cache = folder_.path() / "cache"};
};

TEST_F(FindTorch, TakesTheGivenFolderBeforeOthers) {
  search_.given = make_torch("given", "2.11.3");
  search_.virtual_env = root() / "env";
  make_torch("env/lib/python3.11/site-packages", "2.11.0");
  EXPECT_EQ(find_torch(search_), search_.given);
}

TEST_F(FindTorch, RefusesAGivenFolderThatIsNoneOrOfAnotherMinorVersion) {
  make_torch("env/lib/python3.11/site-packages", "2.11.0");
  search_.virtual_env = root() / "env";
  search_.given = "/nowhere/torch";
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_torch(search_); }),
                  "STEPFORGE_TORCH=/nowhere/torch has no version.py");
  search_.given = make_torch("given", "2.1.1");
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_torch(search_); }),
                  "is PyTorch 2.1.1, but this program was built for 2.11");
}

TEST_F(FindTorch, LooksIntoTheVirtualEnvironmentThenThePythonOnPathThenTheUsersThenItsOwn) {
  const fs::path own = make_torch("cache/torch-2.11.0", "2.11.0+cu130");
  EXPECT_EQ(find_torch(search_), own);
  const fs::path users = make_torch("home/.local/lib/python3.12/site-packages", "2.11.0");
  EXPECT_EQ(find_torch(search_), users);
  make_python("usr/bin", "usr/bin/python3.11");
  make_python("later/bin", "later/bin/python3.11");
  make_torch("later/lib/python3.11/site-packages", "2.11.0");  // not that of python3
  EXPECT_EQ(find_torch(search_), users);
  const fs::path debian = make_torch("usr/local/lib/python3.11/dist-packages", "2.11.1");
  EXPECT_EQ(find_torch(search_), debian);
  const fs::path on_path = make_torch("usr/lib64/python3.11/site-packages", "2.11.1");
  EXPECT_EQ(find_torch(search_), on_path);
  search_.virtual_env = root() / "env";
  const fs::path active = make_torch("env/lib/python3.11/site-packages", "2.11.0");
  EXPECT_EQ(find_torch(search_), active);
}

TEST_F(FindTorch, OfAnInstallationTakesThePackagesOfItsPython) {
  make_torch("usr/lib/python3.10/site-packages", "2.11.0");
  const fs::path right = make_torch("usr/lib/python3.12/site-packages", "2.11.0");
  make_python("usr/bin", "usr/bin/python3.12");
  EXPECT_EQ(find_torch(search_), right);
}

TEST_F(FindTorch, FollowsALinkToThePython) {
  const fs::path torch = make_torch("opt/lib/python3.11/site-packages", "2.11.0");
  make_python("links", "opt/bin/python3.11");
  EXPECT_EQ(find_torch(search_), torch);
}

TEST_F(FindTorch, PassesOverOtherMinorVersionsAndNamesThem) {
  search_.virtual_env = root() / "env";
  make_torch("env/lib/python3.11/site-packages", "2.12.0");
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_torch(search_); }), "no PyTorch 2.11 was found",
                  "(it is 2.12.0)", "set STEPFORGE_TORCH");
  const fs::path own = make_torch("cache/torch-2.11.0", "2.11.0");
  EXPECT_EQ(find_torch(search_), own);
}

}  // namespace
}  // namespace stepforge::testing
