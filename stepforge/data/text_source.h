// SPDX-License-Identifier: Apache-2.0
// Raw text on disk as a sequence of documents: text files, folders of them, and JSON Lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/data/text_chunks.h"

namespace stepforge {

/// "file", "line" or "paragraph"; throws UsageError for anything else.
DocumentMode parse_document_mode(std::string_view word);
std::string document_mode_name(DocumentMode mode);

/// "auto" goes by the name, without .gz or .zst: .jsonl, .ndjson and .json (as Megatron uses it) are JSON Lines, and so
/// are the rows of Parquet and Arrow files (arrow_library.h); everything else is text.
enum class TextFormat { automatic, text, json_lines };

/// "auto", "text" or "jsonl"; throws UsageError for anything else.
TextFormat parse_text_format(std::string_view word);

struct TextSourceOptions {
  std::vector<std::filesystem::path> paths;  ///< files and folders, read in this order
  TextFormat format = TextFormat::automatic;
  DocumentMode mode = DocumentMode::file;
  /// Name of the text field of a JSON line; none: the document is the whole line.
  std::optional<std::string> field = "text";
};

/// What a file holds.
enum class TextFileKind {
  text,
  json_lines,
  json_array,  ///< one array of records, recognised by its first character in a file not named .jsonl or .ndjson
};

/// One file of a source.
struct TextFile {
  std::filesystem::path path;
  TextFileKind kind = TextFileKind::text;
  int64_t bytes = 0;
};

/// Documents in a fixed order. Folders are searched recursively for *.txt, *.text, *.md, *.jsonl and *.ndjson
/// (as the format allows), also compressed as .gz or .zst, and for Parquet and Arrow files (table_folder.h), sorted by
/// path; hidden files are skipped. Documents of only whitespace are
/// skipped, and so is a byte order mark. const members may be called from several threads.
class TextSource {
 public:
  /// Throws UsageError if a path does not exist, is of a type that must be converted first (archives,
  /// tables, PDF), or if there are no files; Error if something cannot be read.
  explicit TextSource(TextSourceOptions options);

  const TextSourceOptions& options() const { return options_; }
  const std::vector<TextFile>& files() const { return files_; }
  int64_t total_bytes() const { return total_bytes_; }
  /// The paths as given, for messages: "book.txt, more/".
  std::string description() const;

  /// Names, number and size of the files in folders that are not read, and which split is; "" if everything is.
  std::string skipped() const;

  /// Hash of the contents of all files, the document mode and the field; file names do not matter. Reads
  /// every byte.
  std::string content_key(int workers) const;

  /// The chunks of a file, from the document boundary `begin` on, of about `target_bytes`.
  std::unique_ptr<TextChunks> chunks(size_t file, int64_t target_bytes, int64_t begin = 0) const;
  /// Calls `document` with each document of the chunk, in order. Throws FormatError if the text is not UTF-8
  /// (naming file and byte), or if a JSON line is not an object or lacks the field (naming file, line and the
  /// keys it has).
  void read(const TextChunk& chunk, const std::function<void(std::string_view)>& document) const;

 private:
  void add_path(const std::filesystem::path& path);
  void add_folder(const std::filesystem::path& folder);
  void add_file(const std::filesystem::path& path);
  TextFileKind kind_of(const std::filesystem::path& path) const;
  int64_t lines_before(const TextChunk& chunk) const;
  std::string contents_of(const TextChunk& chunk) const;

  TextSourceOptions options_;
  std::vector<TextFile> files_;
  std::vector<std::filesystem::path> skipped_;
  int64_t skipped_bytes_ = 0;
  std::vector<std::string> notes_;
  int64_t total_bytes_ = 0;
};

}  // namespace stepforge
