// SPDX-License-Identifier: Apache-2.0
// Raw text on disk as a sequence of documents: text files, JSON Lines and tables, and folders of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/records/record_fault.h"
#include "stepforge/records/text_chunks.h"
#include "stepforge/records/text_files.h"

namespace stepforge {

/// "file", "line" or "paragraph"; throws UsageError for anything else.
DocumentMode parse_document_mode(std::string_view word);
std::string document_mode_name(DocumentMode mode);

struct TextSourceOptions {
  std::vector<std::filesystem::path> paths;  ///< files, folders and patterns, read in this order
  std::string format = "auto";               ///< formats_of()
  DocumentMode mode = DocumentMode::file;
  /// Name of the text field of a JSON line or the column of a table; none: the document is the whole line.
  std::optional<std::string> field = "text";
};

/// Documents in a fixed order. Documents of only whitespace are skipped, and so is a byte order mark. const members may
/// be called from several threads.
class TextSource {
 public:
  /// Throws what find_text_files() throws, and UsageError if all files are empty.
  explicit TextSource(TextSourceOptions options);

  const TextSourceOptions& options() const { return options_; }
  const std::vector<TextFile>& files() const { return found_.files; }
  int64_t total_bytes() const { return found_.bytes; }
  /// The paths as given, for messages: "book.txt, more/".
  std::string description() const;

  /// Names, number and size of the files in folders that are not read, and which split is; "" if everything is read.
  const std::string& skipped() const { return found_.skipped; }

  /// A hash of each file: content_hash of its bytes, or of the hashes of its pieces of 16 MiB if it is larger. Reads
  /// every byte.
  std::vector<std::string> file_hashes(int workers) const;
  /// Hash of the contents of all files, the document mode and the field; file names do not matter. `hashes`: those of
  /// file_hashes().
  std::string content_key(const std::vector<std::string>& hashes) const;

  /// The chunks of a file, from the document boundary `begin` on, of about `target_bytes`.
  std::unique_ptr<TextChunks> chunks(size_t file, int64_t target_bytes, int64_t begin = 0) const;
  /// Calls `document` with each document of the chunk, in order, and `on_fault` instead for each that is not UTF-8
  /// (naming file and byte, or the row of a table), that is a JSON record but no object or lacks the field (naming file, line or row, and
  /// the keys it has), or for which `document` throws FormatError. Without `on_fault` throws FormatError for the first of
  /// these. Throws FormatError if a JSON array as a whole is malformed.
  void read(const TextChunk& chunk, const std::function<void(std::string_view)>& document,
            const FaultHandler& on_fault = {}) const;

 private:
  std::string location(const TextChunk& chunk, int64_t line) const;
  int64_t lines_before(const TextChunk& chunk) const;
  std::string_view contents_of(const TextChunk& chunk, std::string& buffer) const;
  void require_all_utf8(const TextChunk& chunk, std::string_view text) const;
  void read_text(const TextFile& file, int64_t begin, std::string_view text,
                 const std::function<void(std::string_view)>& document, const FaultHandler& on_fault) const;

  TextSourceOptions options_;
  TextFiles found_;
};

}  // namespace stepforge
