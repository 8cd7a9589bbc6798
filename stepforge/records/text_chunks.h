// SPDX-License-Identifier: Apache-2.0
// Cuts a file of documents into chunks that threads can share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "stepforge/records/file_format.h"

namespace stepforge {

/// A range of the contents of a file that begins and ends at document boundaries.
struct TextChunk {
  size_t file = 0;  ///< index into TextSource::files()
  int64_t begin = 0;
  int64_t end = 0;
  int64_t file_bytes = 0;  ///< of the file, which the chunk and those before it take up
  /// The contents, if the file cannot be read from the middle because it is compressed or a table.
  std::shared_ptr<const std::string> text{};
};

/// The chunks of one file, in order.
class TextChunks {
 public:
  TextChunks() = default;
  virtual ~TextChunks() = default;
  TextChunks(const TextChunks&) = delete;
  TextChunks& operator=(const TextChunks&) = delete;
  /// The next chunk; nullopt after the last. Throws Error if the file cannot be read, FormatError if it is corrupt or
  /// a document is too large.
  virtual std::optional<TextChunk> next() = 0;
};

/// A file and how it is cut.
struct ChunkedFile {
  const TextFile& file;  ///< outlives its chunks
  size_t number = 0;     ///< TextChunk::file
  DocumentMode mode = DocumentMode::file;
  std::optional<std::string> column{};  ///< of a table: the only one to read, if it has it
};

/// Chunks of about `target_bytes` of its contents, from the document boundary `begin` on.
std::unique_ptr<TextChunks> open_text_chunks(const ChunkedFile& file, int64_t target_bytes, int64_t begin);

/// The end of the paragraph that contains `from`: just after the next blank line, or the end of the text.
size_t after_blank_line(std::string_view text, size_t from);
/// Whether it is only white space.
bool is_blank(std::string_view text);

}  // namespace stepforge
