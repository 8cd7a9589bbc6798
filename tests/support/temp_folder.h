// SPDX-License-Identifier: Apache-2.0
// A new empty folder for one test, removed at its end.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/write_text.h"

namespace stepforge::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string name = std::filesystem::path(::testing::TempDir()) / "stepforge-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Writes a file, creating its parent folders; returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_text(path, bytes);
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace stepforge::testing
