// SPDX-License-Identifier: Apache-2.0
// Paths as users write them: patterns such as "books/*.txt", and addresses of remote files, which are refused.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace stepforge {

/// Whether `path` names nothing that exists and has one of the characters * ? [ of a pattern.
bool is_path_pattern(const std::filesystem::path& path);

/// What `path` names: itself if it is not a pattern, else everything that matches, sorted. * and ? match inside of a
/// name and [a-z] matches one character, as in a shell; ** as a whole name matches any number of folders, and then
/// only files match. Hidden names match only names in the pattern that begin with a dot; ** follows no symbolic link
/// to a folder. Throws UsageError if nothing matches, naming the nearest folder that exists, or if the path is the
/// address of a remote file, naming what to do; Error if a folder cannot be read.
std::vector<std::filesystem::path> expand_path(const std::filesystem::path& path);

}  // namespace stepforge
