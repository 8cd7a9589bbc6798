// SPDX-License-Identifier: Apache-2.0
// The contents of files that are read from beginning to end: compressed files, and tables as JSON Lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace stepforge {

/// Longer lines, paragraphs and rows are refused: a record is held in memory whole, and takes about sixteen times as much
/// while it is parsed and encoded. No text is that long.
inline constexpr int64_t kMaxRecordBytes = int64_t{64} << 20;

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

/// Files whose rows are read as JSON Lines (records/table_reader.h).
enum class TableFormat : uint8_t {
  none,  ///< not a table
  csv,   ///< fields separated by commas (records/csv_reader.h)
  tsv,   ///< by tabs
  mds,   ///< a shard of MosaicML's format (records/mds_shard.h)
  /// Parquet and Arrow's two formats, told apart by their first bytes (records/arrow_library.h); never compressed as a whole
  arrow,
};

/// By the name: .csv, .tsv, .mds, also with .gz or .zst; .parquet, .arrow, .arrows and .feather.
TableFormat table_format_of(const std::filesystem::path& path);

/// Whether the contents have to be read from the beginning, through a ContentReader.
bool is_sequential(const std::filesystem::path& path, TableFormat table);

struct MdsShard;

struct ContentOptions {
  std::optional<std::string> column{};  ///< of an Arrow table: the only one to read, if it has it
  std::shared_ptr<const MdsShard>
      shard{};  ///< what the index says about a shard of MosaicML; not null for one
};

/// Throws Error if the file cannot be opened, FormatError if its beginning is malformed.
std::unique_ptr<ContentReader> open_contents(const std::filesystem::path& path, TableFormat table,
                                             const ContentOptions& options = {});

inline constexpr int64_t kMaxContentRatio = 1000;

/// Whether contents of `output` bytes, made of `input` bytes of a file, are to be refused as a decompression bomb.
constexpr bool expands_too_much(int64_t input, int64_t output) {
  constexpr int64_t kFreeOutput = int64_t{1} << 30;
  return output > kFreeOutput && output / kMaxContentRatio > input;
}

}  // namespace stepforge
