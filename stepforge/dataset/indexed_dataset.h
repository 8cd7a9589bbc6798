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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/dataset/loss_mask.h"
#include "stepforge/dataset/row.h"
#include "stepforge/dataset/token_files.h"
#include "stepforge/dataset/whole_hash.h"

namespace stepforge {

/// The first bytes of every .idx.
inline constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);

/// u16 if vocab_size < 65500, else i32, as Megatron chooses.
TokenType token_type_for(int64_t vocab_size);

/// `path` itself, or without its extension if it names the .bin or the .idx.
std::filesystem::path dataset_prefix(const std::filesystem::path& path);
/// Whether `path` is a folder beside which a pair has its name, such as the folder of a run that is named like its data. The pair
/// is meant; "books/" means the folder.
bool names_pair_beside_folder(const std::filesystem::path& path);
std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

/// Where the documents of a dataset begin. Every count, length and offset of the .idx has been checked
/// against the sizes of both files.
class DatasetIndex {
 public:
  /// Throws FormatError naming `name`, the byte offset, the field and the error.
  static DatasetIndex parse(std::span<const std::byte> idx, uint64_t bin_bytes, const std::string& name);
  /// `begins`: the first token of each document in ascending order, then the number of tokens.
  DatasetIndex(TokenType type, std::vector<int64_t> begins) : type_(type), begins_(std::move(begins)) {}

  TokenType type() const { return type_; }
  int64_t documents() const { return std::ssize(begins_) - 1; }
  int64_t tokens() const { return begins_.back(); }
  /// The first token of `document`; tokens() if `document` is documents().
  int64_t document_begin(int64_t document) const { return begins_[static_cast<size_t>(document)]; }
  /// The document that contains `token`, which must be in [0, tokens()).
  int64_t document_of(int64_t token) const;

 private:
  TokenType type_;
  std::vector<int64_t> begins_;  ///< [documents + 1] in tokens
};

/// A pair, or token files of which the documents are known, opened for reading. Safe to read from several threads.
class IndexedDataset {
 public:
  /// A pair. Throws UsageError if a file of it is missing, FormatError if the .idx is malformed.
  explicit IndexedDataset(const std::filesystem::path& path);
  /// Token files. `begins`: as in DatasetIndex. Throws UsageError if there is no token.
  IndexedDataset(TokenFiles tokens, std::vector<int64_t> begins);

  /// Its documents [first, end), which are in [0, index().documents()], as a data set of their own on the same files.
  std::shared_ptr<const IndexedDataset> part(int64_t first, int64_t end) const;

  const DatasetIndex& index() const { return index_; }
  /// The .bin file, or the first one and how many there are.
  const std::string& name() const { return tokens_->name(); }
  /// Of the pair; empty for other token files.
  const std::filesystem::path& prefix() const { return prefix_; }
  /// Appends tokens [first_token, first_token + count) to a row, and whether they count if there is a mask.
  /// Throws FormatError naming file, document, id and vocabulary size if an id is outside of the vocabulary.
  void append(int64_t first_token, int64_t count, int64_t vocab_size, Row& row) const;
  /// Token ids [first_token, first_token + out.size()), which must lie inside [0, index().tokens()). Throws Error
  /// naming the file if it cannot be read.
  void read(int64_t first_token, std::span<int32_t> out) const;
  /// Whether some tokens do not count in the loss.
  bool has_mask() const { return mask_ != nullptr; }
  /// out[i] = 1 if token first_token + i counts in the loss, else 0; the same range as read(). Only with
  /// has_mask().
  void read_counted(int64_t first_token, std::span<uint8_t> out) const;
  /// Hash of where the documents begin, the sizes of the token files and of the .mask and a sample of their bytes.
  std::string content_key() const;
  /// The same of the whole token files and .mask, by `hash_of`.
  std::string content(const HashOfFile& hash_of) const;

 private:
  IndexedDataset(std::filesystem::path prefix, const std::string& idx, FileReader bin);
  std::string range_of_part() const;
  void check_ids(int64_t first_token, std::span<const int32_t> ids, int64_t vocab_size) const;

  std::filesystem::path prefix_;
  std::string index_hash_;
  DatasetIndex index_;
  std::shared_ptr<const TokenFiles> tokens_;
  std::shared_ptr<const LossMask> mask_;  ///< null if all tokens count
  int64_t first_document_ = 0;            ///< of a part, in the files
  int64_t first_token_ = 0;               ///< the same
};

}  // namespace stepforge
