// Megatron's indexed dataset: `<prefix>.bin` holds token ids back to back, `<prefix>.idx` says where
// documents begin. All numbers are little-endian. Layout of the .idx: 9 bytes "MMIDIDX\0\0"; u64 version = 1;
// u8 token type; u64 S sequences; u64 D document borders; then from byte 34 i32[S] lengths in tokens, i64[S]
// byte offsets into the .bin, i64[D] numbers of the sequences at which documents begin, ending with S.
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

/// Token types that are read and written, by their code in the .idx.
enum class TokenType : uint8_t { u8 = 1, i32 = 4, u16 = 8 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);

/// u16 if vocab_size < 65500, else i32, as Megatron chooses.
TokenType token_type_for(int64_t vocab_size);

/// `prefix` itself, or without its extension if it names the .bin or the .idx.
std::filesystem::path dataset_prefix(const std::filesystem::path& path);
std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

/// A checked view of the bytes of an .idx. Every count, length and offset is proved consistent with the sizes
/// of both files by parse(), so that the accessors need no checks. The bytes must outlive it.
class DatasetIndex {
 public:
  /// Throws FormatError naming `name`, the byte offset, the field and the fault. Needs no memory beyond the
  /// view.
  static DatasetIndex parse(std::span<const std::byte> idx, uint64_t bin_bytes, const std::string& name);

  TokenType type() const { return type_; }
  int64_t documents() const { return borders_ - 1; }
  int64_t tokens() const { return tokens_; }
  /// The first token of document `document` in [0, documents()]; tokens() for documents() itself.
  int64_t document_begin(int64_t document) const;
  /// The document that holds `token` in [0, tokens()).
  int64_t document_of(int64_t token) const;

 private:
  DatasetIndex() = default;
  void parse_header(const std::string& name);
  void check_sequences(uint64_t bin_bytes, const std::string& name) const;
  void check_borders(const std::string& name) const;
  template <typename T>
  T at(uint64_t offset) const;
  uint64_t length_offset(int64_t sequence) const;
  uint64_t pointer_offset(int64_t sequence) const;
  uint64_t border_offset(int64_t border) const;

  std::span<const std::byte> bytes_;
  TokenType type_ = TokenType::u16;
  int64_t sequences_ = 0;
  int64_t borders_ = 1;
  int64_t tokens_ = 0;
};

/// A pair opened for reading, mapped into memory. Safe to read from several threads.
class IndexedDataset {
 public:
  /// Throws UsageError if a file of the pair is missing, FormatError if the .idx is malformed.
  explicit IndexedDataset(const std::filesystem::path& path);

  const DatasetIndex& index() const { return index_; }
  const std::filesystem::path& prefix() const { return prefix_; }
  /// Token ids [first_token, first_token + out.size()), which must lie inside [0, tokens()).
  void read(int64_t first_token, std::span<int32_t> out) const;
  /// Hash of the whole .idx, the size of the .bin and a sample of its bytes.
  std::string content_key() const;

 private:
  std::filesystem::path prefix_;
  MappedFile idx_;
  MappedFile bin_;
  DatasetIndex index_;
};

/// Writes a pair in order. Nothing appears under the final names before publish().
class IndexedDatasetWriter {
 public:
  /// Creates temporary files beside the final ones. Throws Error if it cannot.
  IndexedDatasetWriter(std::filesystem::path prefix, TokenType type);
  /// Removes the temporary files if nothing was published.
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// Throws Error if an id does not fit the token type or the document has 2^31 tokens or more.
  void add_document(std::span<const int32_t> tokens);
  /// Flushes both files, then renames the .bin and last the .idx. An older .idx of that name is removed
  /// first, so that a reader finds a matching pair or none.
  void publish();

  int64_t documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const { return tokens_; }
  const std::filesystem::path& prefix() const { return prefix_; }

 private:
  void write_index();

  std::filesystem::path prefix_;
  TokenType type_;
  std::filesystem::path bin_staging_;
  std::filesystem::path idx_staging_;
  std::unique_ptr<FileWriter> bin_;
  std::vector<int32_t> lengths_;
  std::string buffer_;
  int64_t tokens_ = 0;
  bool published_ = false;
};

}  // namespace stepforge
