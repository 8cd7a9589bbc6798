// SPDX-License-Identifier: Apache-2.0
// A new empty folder for one test, removed at its end.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "stepforge/base/temporary_folder.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {

class TempFolder {
 public:
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return path() / name; }
  /// Writes a file, creating its parent folders; returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    write_text(file, bytes);
    return file;
  }

 private:
  TemporaryFolder folder_{"test"};
};

}  // namespace stepforge::testing
