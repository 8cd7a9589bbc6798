// SPDX-License-Identifier: Apache-2.0
// Files of a repository that was cloned without git-lfs: a few lines of text in the place of a large file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace stepforge {

/// Whether a file that begins with `head` and holds `bytes` bytes is a pointer of git-lfs
/// (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
bool is_lfs_pointer(std::string_view head, int64_t bytes);

/// Throws Error with the remedy if it is one. `source`: the file.
void refuse_lfs_pointer(std::string_view head, int64_t bytes, const std::string& source);

/// The same of a file on disk; passes over one that cannot be read.
void refuse_lfs_pointer(const std::filesystem::path& path);

}  // namespace stepforge
