// SPDX-License-Identifier: Apache-2.0
// Checks of file names that are read from files: they may only be plain names in one folder.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace stepforge {

/// A name without '/', '\\' or control bytes, not empty, "." or "..", at most 255 bytes.
bool is_plain_file_name(std::string_view name);

/// Whether `path` itself (not what a link points to) is a regular file. Throws Error if that cannot be read, which is
/// not the same as "there is none".
bool is_regular_file_itself(const std::filesystem::path& path);

/// The entries of `folder`, in no particular order. Throws Error if it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Whether folder/name is a regular file of this folder. A link counts if it leads to a file of the folder or
/// of the `blobs` folder of a Hugging Face cache, in which `folder` is snapshots/<revision>.
bool is_file_of_folder(const std::filesystem::path& folder, std::string_view name);

}  // namespace stepforge
