// SPDX-License-Identifier: Apache-2.0
// Pointers of git-lfs: a clone without git-lfs has a few lines of text in place of each large file.
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

/// The same for a file on disk; ignores one that cannot be read.
void refuse_lfs_pointer(const std::filesystem::path& path);

}  // namespace stepforge
