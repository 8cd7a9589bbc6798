// SPDX-License-Identifier: Apache-2.0
// Megatron's indexed dataset: `<prefix>.bin` holds token ids back to back, `<prefix>.idx` states where
// documents begin. All numbers are little-endian. Layout of the .idx: 9 bytes "MMIDIDX\0\0"; u64 version = 1;
// u8 token type; u64 S sequences; u64 D document boundaries; then from byte 34 i32[S] lengths in tokens,
// i64[S] byte offsets into the .bin, i64[D] numbers of the sequences at which documents begin, ending with S.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/files.h"

namespace stepforge {

/// Supported token types, by their code in the .idx.
enum class TokenType : uint8_t { u8 = 1, i32 = 4, u16 = 8 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);

/// u16 if vocab_size < 65500, else i32, as Megatron chooses.
TokenType token_type_for(int64_t vocab_size);

/// `path` itself, or without its extension if it names the .bin or the .idx.
std::filesystem::path dataset_prefix(const std::filesystem::path& path);
std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

/// Where the documents of a dataset begin. Every count, length and offset of the .idx has been checked
/// against the sizes of both files.
class DatasetIndex {
 public:
  /// Throws FormatError naming `name`, the byte offset, the field and the error.
  static DatasetIndex parse(std::span<const std::byte> idx, uint64_t bin_bytes, const std::string& name);

  TokenType type() const { return type_; }
  int64_t documents() const { return std::ssize(begins_) - 1; }
  int64_t tokens() const { return begins_.back(); }
  /// The first token of `document`; tokens() if `document` is documents().
  int64_t document_begin(int64_t document) const { return begins_[static_cast<size_t>(document)]; }
  /// The document that contains `token`, which must be in [0, tokens()).
  int64_t document_of(int64_t token) const;

 private:
  DatasetIndex() = default;

  TokenType type_ = TokenType::u16;
  std::vector<int64_t> begins_;  ///< [documents + 1] in tokens
};

/// A pair opened for reading. Safe to read from several threads.
class IndexedDataset {
 public:
  /// Throws UsageError if a file of the pair is missing, FormatError if the .idx is malformed.
  explicit IndexedDataset(const std::filesystem::path& path);

  const DatasetIndex& index() const { return index_; }
  const std::filesystem::path& prefix() const { return prefix_; }
  /// Token ids [first_token, first_token + out.size()), which must lie inside [0, tokens()). Throws Error
  /// naming the file if it cannot be read.
  void read(int64_t first_token, std::span<int32_t> out) const;
  /// Hash of the whole .idx, the size of the .bin and a sample of its bytes.
  std::string content_key() const;

 private:
  IndexedDataset(std::filesystem::path prefix, const std::string& idx);

  std::filesystem::path prefix_;
  FileReader bin_;
  std::string idx_hash_;
  DatasetIndex index_;
};

/// Writes a pair in order. Nothing appears under the final names before publish().
class IndexedDatasetWriter {
 public:
  /// How much has been written.
  struct Position {
    int64_t documents = 0;
    int64_t tokens = 0;
  };

  /// Creates temporary files beside the final ones; the destructor removes them. Throws Error if it cannot.
  IndexedDatasetWriter(std::filesystem::path prefix, TokenType type);
  /// A writer that can be resumed: its temporary files stay until publish(), so that a later writer of the
  /// same prefix can continue at a position that save() returned; {} starts from the beginning. Only one may
  /// write at a time. Throws Error if the files hold less than `resume`.
  IndexedDatasetWriter(std::filesystem::path prefix, TokenType type, const Position& resume);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// Throws Error if an id does not fit the token type or the document has 2^31 tokens or more.
  void add_document(std::span<const int32_t> tokens);
  /// Flushes all documents to the disk. Only for a writer that can be resumed.
  Position save();
  /// Flushes both files, then renames the .bin and last the .idx. An older .idx is removed first, so that a
  /// reader finds a matching pair or none.
  void publish();

  int64_t documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const { return tokens_; }
  const std::filesystem::path& prefix() const { return prefix_; }

 private:
  void read_lengths(int64_t documents);
  void write_index();

  std::filesystem::path prefix_;
  TokenType type_;
  std::filesystem::path bin_staging_;
  std::filesystem::path idx_staging_;
  std::filesystem::path lengths_staging_;
  std::unique_ptr<FileWriter> bin_;
  std::unique_ptr<FileWriter> lengths_file_;  ///< only if it can be resumed: lengths_ on the disk
  std::vector<int32_t> lengths_;
  std::string buffer_;
  int64_t tokens_ = 0;
  bool published_ = false;
};

}  // namespace stepforge
