// SPDX-License-Identifier: Apache-2.0
// Megatron's indexed dataset: `<prefix>.bin` holds token ids back to back, `<prefix>.idx` states where
// documents begin. All numbers are little-endian. Layout of the .idx: 9 bytes "MMIDIDX\0\0"; u64 version = 1;
// u8 token type; u64 S sequences; u64 D document boundaries; then from byte 34 i32[S] lengths in tokens,
// i64[S] byte offsets into the .bin, i64[D] numbers of the sequences at which documents begin, ending with S.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/files.h"
#include "stepforge/data/batch.h"
#include "stepforge/data/loss_mask.h"

namespace stepforge {

/// The first bytes of every .idx.
inline constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);

/// Supported token types, by their code in the .idx.
enum class TokenType : uint8_t { u8 = 1, i32 = 4, u16 = 8 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);
/// "u8", "i32" or "u16".
std::string token_type_name(TokenType type);

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
  /// Appends tokens [first_token, first_token + count) to a row, and whether they count if there is a mask.
  /// Throws FormatError naming file, document, id and vocabulary size if an id is outside of the vocabulary.
  void append(int64_t first_token, int64_t count, int64_t vocab_size, Row& row) const;
  /// Token ids [first_token, first_token + out.size()), which must lie inside [0, tokens()). Throws Error
  /// naming the file if it cannot be read.
  void read(int64_t first_token, std::span<int32_t> out) const;
  /// Whether some tokens do not count in the loss.
  bool has_mask() const { return mask_.has_value(); }
  /// out[i] = 1 if token first_token + i counts in the loss, else 0; the same range as read(). Only with
  /// has_mask().
  void read_counted(int64_t first_token, std::span<uint8_t> out) const;
  /// Hash of the whole .idx, the sizes of the .bin and of the .mask and a sample of their bytes.
  std::string content_key() const;

 private:
  IndexedDataset(std::filesystem::path prefix, const std::string& idx);
  void require_tokens(int64_t first_token, size_t count) const;
  void check_ids(int64_t first_token, std::span<const int32_t> ids, int64_t vocab_size) const;

  std::filesystem::path prefix_;
  FileReader bin_;
  std::string idx_hash_;
  DatasetIndex index_;
  std::optional<LossMask> mask_;
};

}  // namespace stepforge
