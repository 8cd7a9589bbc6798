// SPDX-License-Identifier: Apache-2.0
// The contents of files that are read from beginning to end: compressed files, and tables as JSON Lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace stepforge {

class ContentReader {
 public:
  ContentReader() = default;
  virtual ~ContentReader() = default;
  ContentReader(const ContentReader&) = delete;
  ContentReader& operator=(const ContentReader&) = delete;

  /// Fills `out` with the next bytes of the contents; returns fewer than asked for only at the end. Throws FormatError
  /// naming the file and the place in it if the file is corrupt or truncated.
  virtual int64_t read(std::span<char> out) = 0;
  /// Bytes of the file that have been read, for progress.
  virtual int64_t position() const = 0;
};

/// Files whose rows are read as JSON Lines (data/table_reader.h).
enum class TableFormat : uint8_t {
  none,  ///< not a table
  csv,   ///< fields separated by commas (data/csv_reader.h)
  tsv,   ///< by tabs
  mds,   ///< a shard of MosaicML's format (data/mds_shard.h)
};

/// By the name without .gz or .zst: .csv, .tsv, .mds.
TableFormat table_format_of(const std::filesystem::path& path);

/// Whether the contents have to be read from the beginning, through a ContentReader.
bool is_sequential(const std::filesystem::path& path, TableFormat table);

/// Throws Error if the file cannot be opened, FormatError if its beginning is malformed.
std::unique_ptr<ContentReader> open_contents(const std::filesystem::path& path, TableFormat table);

}  // namespace stepforge
