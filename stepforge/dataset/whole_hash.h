// SPDX-License-Identifier: Apache-2.0
// Hashes of whole files, which take long for large ones: each is computed once and kept with the size and time of the file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace stepforge {

/// Gives the hash of the contents of a file.
using HashOfFile = std::function<std::string(const std::filesystem::path& file)>;

/// file_hash(file), from `folder` if it was computed before and the file has kept its size and the time of its last change.
/// Nothing is kept if `folder` cannot be written. Calls `on_chunk` while it reads. Throws Error if the file cannot be read.
std::string whole_hash(const std::filesystem::path& file, const std::filesystem::path& folder,
                       const std::function<void()>& on_chunk = {});

}  // namespace stepforge
