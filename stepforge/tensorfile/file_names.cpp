// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/file_names.h"

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<uint8_t>(c) < 0x20 || c == 0x7F;
  });
}

bool is_regular_file_itself(const fs::path& path) {
  std::error_code failure;
  const fs::file_type type = fs::symlink_status(path, failure).type();
  if (type == fs::file_type::none) {
    throw Error(format("cannot read {}: {}", path.string(), failure.message()));
  }
  return type == fs::file_type::regular;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  try {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
    return paths;
  } catch (const fs::filesystem_error& failure) {
    throw Error(format("cannot read the folder {}: {}", folder.string(), failure.code().message()));
  }
}

bool is_file_of_folder(const fs::path& folder, std::string_view name) {
  if (!is_plain_file_name(name)) return false;
  std::error_code failure;
  const fs::path home = fs::canonical(folder, failure);
  if (failure) return false;
  const fs::path target = fs::canonical(home / name, failure);
  if (failure || !is_regular_file_itself(target)) return false;
  if (target.parent_path() == home) return true;
  const fs::path snapshots = home.parent_path();
  return snapshots.filename() == "snapshots" && target.parent_path() == snapshots.parent_path() / "blobs";
}

}  // namespace stepforge
