// SPDX-License-Identifier: Apache-2.0
// Which files the paths of a text source stand for, and what each of them holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/records/file_format.h"

namespace stepforge {

struct TextFiles {
  std::vector<TextFile> files;
  int64_t bytes = 0;  ///< of all files
  /// Names, number and size of the files in folders that are not read, and which split is; "" if everything is read.
  std::string skipped;
};

/// The files that `paths` name, in this order: files, patterns (base/path_pattern.h), and folders, which are searched recursively for
/// the names of the formats that `format` chooses (formats_of()), also compressed as .gz or .zst, sorted by path; hidden files are
/// skipped, and table_folder.h says which others are. A file that has none of these names is of the first of these formats.
///
/// Throws UsageError if a path does not exist or is of a type that must be converted first (archives, PDF), or if a folder has no
/// such file; Error if something cannot be read; FormatError if an index of a folder is malformed.
TextFiles find_text_files(const std::vector<std::filesystem::path>& paths, std::string_view format);

}  // namespace stepforge
