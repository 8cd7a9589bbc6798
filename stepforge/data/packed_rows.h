// SPDX-License-Identifier: Apache-2.0
// Rows that hold the pieces of documents that a table names, padded to equal length.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/data/packing.h"
#include "stepforge/data/row_source.h"
#include "stepforge/dataset/indexed_dataset.h"

namespace stepforge {

/// The length of every document in tokens.
std::vector<int64_t> document_lengths(const DatasetIndex& index);

/// What the documents of a data set are.
enum class DocumentKind : uint8_t {
  text,
  pair,  ///< a better answer with its prompt, then a worse one with the same prompt (records/chat_records.h)
  answer,  ///< an answer with its prompt; undesirable if its first token counts
};

/// Each piece of a row is a document of its own to attention. If the last one ends inside its document, the
/// next token of that is the last label. Padding follows (append_padding).
class PackedRows : public RowSource {
 public:
  /// Documents without a label are left out, unless `packing` divides documents. `text_bytes`: UTF-8 bytes that the
  /// dataset was made from, if known. `source`: what messages call it, if not by the name of the dataset. Throws
  /// UsageError if there is no row, or no token has a label. Rows of answers have room for read_mismatched().
  PackedRows(const std::shared_ptr<const IndexedDataset>& dataset, int64_t seq_len, int64_t vocab_size,
             Packing packing, uint64_t seed, std::optional<int64_t> text_bytes,
             const std::string& source = "", DocumentKind kind = DocumentKind::text);
  /// Rows of a table that fits the dataset. `identity`: equal for equal tables.
  PackedRows(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_len, int64_t vocab_size,
             PackTable table, std::string_view identity, std::optional<int64_t> text_bytes,
             const std::string& source = "", DocumentKind kind = DocumentKind::text);

  const std::string& name() const override { return name_; }
  int64_t rows() const override { return table_.rows(); }
  int64_t seq_len() const override { return seq_len_; }
  void read(int64_t number, Row& row) const override;
  void read_mismatched(int64_t number, Row& row) const override;
  int64_t attention_cost(int64_t number) const override;
  const std::string& fingerprint() const override { return fingerprint_; }
  std::string content(const HashOfFile& hash_of) const override {
    return fingerprint_ + dataset_->content(hash_of);
  }
  /// Of the pieces, without padding.
  int64_t tokens() const override { return account_.tokens; }
  int64_t pairs() const override { return kind_ == DocumentKind::text ? 0 : dataset_->index().documents(); }
  /// Without those that are left out.
  int64_t documents() const override { return dataset_->index().documents() - account_.unlabelled_documents; }
  std::optional<int64_t> text_bytes() const override { return text_bytes_; }
  const PackTable* pack_table() const override { return &table_; }
  const RowAccount* account() const override { return &account_; }

 private:
  void append_piece(const Piece& piece, Row& row) const;
  /// Divides the last piece, which begins at token `start` of the row, into its two answers. Throws FormatError if there are
  /// no two answers.
  static void divide_pair(const Piece& piece, size_t start, Row& row);
  /// The last piece is an answer that is judged. Throws FormatError if it has none.
  static void mark_answer(const Piece& piece, size_t start, Row& row);
  /// Puts the answer of the record before its own into the last piece, which begins at token `start` of the row.
  void mismatch(int64_t document, size_t start, Row& row) const;
  void append_last_label(const Piece& last, Row& row) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  int64_t seq_len_;
  int64_t vocab_size_;
  DocumentKind kind_;
  std::optional<int64_t> text_bytes_;
  PackTable table_;
  RowAccount account_;
  std::string name_;
  std::string fingerprint_;
};

}  // namespace stepforge
