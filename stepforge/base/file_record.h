// SPDX-License-Identifier: Apache-2.0
// Length and hash of files, stored beside them so that damage is found before they are used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "stepforge/base/json_reader.h"

namespace stepforge {

struct FileRecord {
  std::string name;  ///< without folder
  int64_t bytes = 0;
  std::string hash;  ///< content_hash: detects damage, not manipulation
};

/// Reads and hashes one file. Throws Error.
FileRecord file_record(const std::filesystem::path& path);

Json file_records_to_json(const std::vector<FileRecord>& files);
/// Throws FormatError naming the file and the field if an entry is malformed, a name is not a plain file name
/// or occurs twice, or the sizes add up to 2^63 or more.
std::vector<FileRecord> file_records_from_json(const JsonReader& entries);

/// "missing", "truncated: 5 of 10 bytes", "changed: ..."; "" if the file is the one recorded. Calls
/// `on_chunk` after each MiB read. Throws Error if the file cannot be read.
std::string file_fault(const std::filesystem::path& path, const FileRecord& record,
                       const std::function<void()>& on_chunk = {});

}  // namespace stepforge
