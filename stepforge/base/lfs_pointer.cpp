// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/lfs_pointer.h"

#include <fstream>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {
constexpr std::string_view kFirstWords = "version https://git-lfs.github.com/spec/";
constexpr int64_t kMaxPointerBytes = 1024;  // set by the specification
}  // namespace

bool is_lfs_pointer(std::string_view head, int64_t bytes) {
  return bytes < kMaxPointerBytes && head.starts_with(kFirstWords);
}

void refuse_lfs_pointer(std::string_view head, int64_t bytes, const std::string& source) {
  if (!is_lfs_pointer(head, bytes)) return;
  throw Error(format(
      "{} is only a pointer of git-lfs: the repository was cloned without its large files; run `git lfs "
      "pull` there, or download it with `hf download`",
      source));
}

void refuse_lfs_pointer(const std::filesystem::path& path) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure)) return;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, failure));
  if (failure || bytes >= kMaxPointerBytes) return;
  std::string head(kFirstWords.size(), '\0');
  std::ifstream(path, std::ios::binary).read(head.data(), static_cast<std::streamsize>(head.size()));
  refuse_lfs_pointer(head, bytes, path.string());
}

}  // namespace stepforge
