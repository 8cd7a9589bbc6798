// SPDX-License-Identifier: Apache-2.0
// Which files the paths of a text source stand for, and what each of them holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/records/content_reader.h"

namespace stepforge {

enum class TextFormat : uint8_t {
  /// By the name, without .gz or .zst: .jsonl, .ndjson and .json (as Megatron uses it) are JSON Lines; .csv, .tsv,
  /// the .mds files of MosaicML, .parquet, .arrow, .arrows and .feather are tables; everything else is text.
  automatic,
  text,
  json_lines,
  csv,      ///< separated by tabs if the name ends in .tsv
  mds,      ///< folders of MosaicML's shards
  records,  ///< tables by their name, everything else JSON Lines
};

/// "auto", "text", "jsonl", "csv", "mds" or "records"; throws UsageError for anything else.
TextFormat parse_text_format(std::string_view word);

/// What a file holds.
enum class TextFileKind : uint8_t {
  text,
  json_lines,  ///< also the contents of a table
  json_array,  ///< one array of records, recognised by its first character in a file not named .jsonl or .ndjson
};

/// One file of a source.
struct TextFile {
  std::filesystem::path path;
  TextFileKind kind = TextFileKind::text;
  int64_t bytes = 0;
  TableFormat table = TableFormat::none;
  std::shared_ptr<const MdsShard> shard{};  ///< of a table of that format
};

struct TextFiles {
  std::vector<TextFile> files;
  int64_t bytes = 0;  ///< of all files
  /// Names, number and size of the files in folders that are not read, and which split is; "" if everything is read.
  std::string skipped;
};

/// The files that `paths` name, in this order: files, patterns (base/path_pattern.h), and folders, which are searched
/// recursively for *.txt, *.text, *.md, *.jsonl, *.ndjson, *.csv, *.tsv and the shards that an index.json of MosaicML
/// lists (as the format allows), also compressed as .gz or .zst, and for Parquet and Arrow files (records/table_folder.h), sorted by
/// path; hidden files are skipped. Throws
/// UsageError if a path does not exist or is of a type that must be converted first (archives, PDF), or if
/// a folder has no such file; Error if something cannot be read; FormatError if an index of MosaicML is malformed.
TextFiles find_text_files(const std::vector<std::filesystem::path>& paths, TextFormat format);

}  // namespace stepforge
