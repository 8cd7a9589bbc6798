// SPDX-License-Identifier: Apache-2.0
// Parquet and Arrow files as JSON Lines: one row, one object, one line. libstepforge_arrow.so reads them; it is loaded
// from the folder of this library when a source is such a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "stepforge/records/content_reader.h"
#include "stepforge/records/file_format.h"

namespace stepforge {

/// Never compressed as a whole, and never read by another reader.
extern const FileFormat kArrowFormat;

/// Whether the name ends in .parquet, .arrow, .arrows or .feather.
bool is_arrow_name(const std::filesystem::path& path);

struct ArrowRequest {
  std::filesystem::path path;
  /// The only column to read, if the table has it; none: all of them.
  std::optional<std::string> column{};
  /// What Arrow may hold of the file at a time, in bytes: batches, dictionaries, pages and their decompressed form. A row
  /// as JSON may take no more, and at most kMaxRecordBytes.
  int64_t max_memory = int64_t{1} << 30;
};

/// The exported function of libstepforge_arrow.so; the caller deletes the result. Parquet, Arrow's IPC file format and its stream format are told apart by
/// their first bytes. Throws Error if the file cannot be opened, FormatError if it is corrupt or has a column whose type has no
/// form in JSON. Reading the result throws FormatError that names the row, from 1, and the column.
using ArrowEntry = ContentReader* (*)(const ArrowRequest& request);
inline constexpr const char* kArrowEntryName = "stepforge_arrow_entry";

/// Throws UsageError with the remedy if `library` cannot be loaded; `path` is the table that needs it.
ArrowEntry load_arrow_library(const std::filesystem::path& library, const std::filesystem::path& path);

/// The library beside this one.
std::filesystem::path arrow_library_path();

/// By way of the library, as described above.
std::unique_ptr<ContentReader> open_arrow(const ArrowRequest& request);

}  // namespace stepforge
