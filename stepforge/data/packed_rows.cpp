// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/packed_rows.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

std::vector<int64_t> document_lengths(const DatasetIndex& index) {
  std::vector<int64_t> lengths(static_cast<size_t>(index.documents()));
  for (int64_t i = 0; i < index.documents(); ++i)
    lengths[static_cast<size_t>(i)] = index.document_begin(i + 1) - index.document_begin(i);
  return lengths;
}

PackedRows::PackedRows(const std::shared_ptr<const IndexedDataset>& dataset, int64_t seq_len,
                       int64_t vocab_size, Packing packing, uint64_t seed, std::optional<int64_t> text_bytes)
    : PackedRows(dataset, seq_len, vocab_size,
                 pack_documents(document_lengths(dataset->index()), seq_len, packing, seed),
                 format("{} {}", static_cast<int>(packing), static_cast<uint32_t>(seed)), text_bytes) {}

PackedRows::PackedRows(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_len, int64_t vocab_size,
                       PackTable table, std::string_view identity, std::optional<int64_t> text_bytes)
    : dataset_(std::move(dataset)),
      seq_len_(seq_len),
      vocab_size_(vocab_size),
      text_bytes_(text_bytes),
      table_(std::move(table)),
      name_(dataset_->name()) {
  if (table_.rows() == 0) {
    throw UsageError(
        format("{} holds {} tokens, too few for one row of {} tokens: use more data or a smaller "
               "training.seq_len",
               name_, dataset_->index().tokens(), seq_len));
  }
  for (const Piece& piece : table_.pieces) used_tokens_ += piece.end - piece.begin;
  text_bytes_ = bytes_of_part(text_bytes_, used_tokens_, dataset_->index().tokens());
  fingerprint_ = content_hash(format("rows {} {} {}", dataset_->content_key(), seq_len, identity));
}

int64_t PackedRows::attention_cost(int64_t number) const {
  int64_t cost = 0;
  int64_t padding = seq_len_;
  for (const Piece& piece : table_.row(number)) {
    const int64_t length = piece.end - piece.begin;
    cost += length * length;
    padding -= length;
  }
  const int64_t rest = padding % kPaddingDocument;
  return cost + padding / kPaddingDocument * kPaddingDocument * kPaddingDocument + rest * rest;
}

void PackedRows::read(int64_t number, Row& row) const {
  row.tokens.clear();
  row.document_starts.clear();
  row.counted.clear();
  const std::span<const Piece> pieces = table_.row(number);
  for (const Piece& piece : pieces) append_piece(piece, row);
  append_last_label(pieces.back(), row);
  append_padding(seq_len_, row);
}

void PackedRows::append_piece(const Piece& piece, Row& row) const {
  const size_t start = row.tokens.size();
  if (start > 0) row.document_starts.push_back(static_cast<int32_t>(start));
  const int64_t first = dataset_->index().document_begin(piece.document) + piece.begin;
  dataset_->append(first, piece.end - piece.begin, vocab_size_, row);
}

void PackedRows::append_last_label(const Piece& last, Row& row) const {
  const DatasetIndex& index = dataset_->index();
  const int64_t next = index.document_begin(last.document) + last.end;
  const bool is_full = std::ssize(row.tokens) == seq_len_;
  if (is_full && next < index.document_begin(last.document + 1)) dataset_->append(next, 1, vocab_size_, row);
}

}  // namespace stepforge
