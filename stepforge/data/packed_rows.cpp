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

namespace {

/// The record whose answer is a mismatched one.
int64_t record_before(int64_t document, int64_t documents) {
  return (document + documents - 1) % documents;
}

/// Packs documents so that they fit also with the answers of the records before them. Their answers are their labels.
PackTable pack_answers(const std::vector<int64_t>& lengths, const std::vector<int64_t>& labels,
                       int64_t seq_len, Packing packing, uint64_t seed) {
  std::vector<int64_t> room = lengths;
  for (size_t i = 0; i < room.size(); ++i) {
    if (labels[i] == 0) continue;
    const auto other = static_cast<size_t>(record_before(static_cast<int64_t>(i), std::ssize(room)));
    room[i] = std::max(room[i], std::min(seq_len, room[i] - labels[i] + labels[other]));
  }
  PackTable table = pack_documents(room, seq_len, packing, seed);
  for (Piece& piece : table.pieces)
    piece.end = std::min(piece.end, lengths[static_cast<size_t>(piece.document)]);
  return table;
}

/// Packs the documents that have a label. `hard` keeps all: where they are divided shows only in the rows.
PackTable pack_labelled(const IndexedDataset& dataset, int64_t seq_len, Packing packing, uint64_t seed,
                        DocumentKind kind) {
  std::vector<int64_t> lengths = document_lengths(dataset.index());
  if (packing == Packing::hard) return pack_documents(lengths, seq_len, packing, seed);
  const std::vector<int64_t> labels = labels_of_documents(dataset, seq_len);
  int64_t documents = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (labels[i] > 0 || lengths[i] == 0) continue;
    ++documents;
    tokens += std::exchange(lengths[i], 0);
  }
  PackTable table = kind == DocumentKind::answer ? pack_answers(lengths, labels, seq_len, packing, seed)
                                                 : pack_documents(lengths, seq_len, packing, seed);
  table.unlabelled_documents = documents;
  table.unlabelled_tokens = tokens;
  return table;
}

}  // namespace

PackedRows::PackedRows(const std::shared_ptr<const IndexedDataset>& dataset, int64_t seq_len,
                       int64_t vocab_size, Packing packing, uint64_t seed, std::optional<int64_t> text_bytes,
                       const std::string& source, DocumentKind kind)
    : PackedRows(dataset, seq_len, vocab_size, pack_labelled(*dataset, seq_len, packing, seed, kind),
                 format("{} {}", static_cast<int>(packing), static_cast<uint32_t>(seed)), text_bytes, source,
                 kind) {}

PackedRows::PackedRows(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_len, int64_t vocab_size,
                       PackTable table, std::string_view identity, std::optional<int64_t> text_bytes,
                       const std::string& source, DocumentKind kind)
    : dataset_(std::move(dataset)),
      seq_len_(seq_len),
      vocab_size_(vocab_size),
      kind_(kind),
      text_bytes_(text_bytes),
      table_(std::move(table)),
      account_(account_of(*dataset_, table_, seq_len)),
      name_(source.empty() ? dataset_->name() : source) {
  if (table_.rows() == 0 && table_.unlabelled_documents == 0) {
    throw UsageError(
        format("{} holds {} tokens, too few for one row of {} tokens: use more data or a smaller "
               "training.seq_len",
               name_, dataset_->index().tokens(), seq_len));
  }
  require_labels(account_, name_, dataset_->index().documents(), seq_len);
  text_bytes_ = bytes_of_part(text_bytes_, account_.tokens, dataset_->index().tokens());
  // Rows without such documents are the same as in versions that did not leave them out.
  const char* const labelled = table_.unlabelled_documents > 0 ? " with labels" : "";
  const char* const paired = kind_ == DocumentKind::text   ? ""
                             : kind_ == DocumentKind::pair ? " in pairs"
                                                           : " of answers";
  fingerprint_ =
      content_hash(format("rows {} {} {}{}{}", dataset_->content_key(), seq_len, identity, labelled, paired));
}

int64_t PackedRows::attention_cost(int64_t number) const {
  if (kind_ == DocumentKind::pair) return RowSource::attention_cost(number);  // only the mask divides a pair
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
  row.pairs.clear();
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
  if (kind_ == DocumentKind::pair) divide_pair(piece, start, row);
  if (kind_ == DocumentKind::answer) mark_answer(piece, start, row);
}

void PackedRows::mark_answer(const Piece& piece, size_t start, Row& row) {
  const bool is_desirable = std::exchange(row.counted[start], uint8_t{0}) == 0;
  if (row.counted.back() == 0)
    throw FormatError(format("document {} of the data set has no answer at its end", piece.document));
  const auto begin = static_cast<int32_t>(start);
  const auto end = static_cast<int32_t>(row.counted.size());
  row.pairs.push_back(
      {.number = piece.document, .begin = begin, .middle = is_desirable ? end : begin, .end = end});
}

void PackedRows::read_mismatched(int64_t number, Row& row) const {
  if (kind_ != DocumentKind::answer) return RowSource::read_mismatched(number, row);
  row = {};
  for (const Piece& piece : table_.row(number)) {
    const size_t start = row.tokens.size();
    append_piece(piece, row);
    mismatch(piece.document, start, row);
  }
  append_padding(seq_len_, row);
}

void PackedRows::mismatch(int64_t document, size_t start, Row& row) const {
  const DatasetIndex& index = dataset_->index();
  const int64_t other = record_before(document, index.documents());
  const int64_t begin = index.document_begin(other);
  Row from;
  dataset_->append(begin, index.document_begin(other + 1) - begin, vocab_size_, from);
  // The first token of a document is never an answer's.
  const auto answer_in = [](const Row& of, size_t first) {
    return static_cast<size_t>(
        std::find(of.counted.begin() + static_cast<std::ptrdiff_t>(first) + 1, of.counted.end(), 1) -
        of.counted.begin());
  };
  const size_t answer = answer_in(row, start);
  const size_t taken = answer_in(from, 0);
  const size_t size = std::min(from.tokens.size() - taken, start + static_cast<size_t>(seq_len_) - answer);
  row.tokens.resize(answer);
  row.counted.resize(answer);
  row.tokens.insert(row.tokens.end(), from.tokens.begin() + static_cast<std::ptrdiff_t>(taken),
                    from.tokens.begin() + static_cast<std::ptrdiff_t>(taken + size));
  row.counted.resize(answer + size, 1);
  RowPair& pair = row.pairs.back();
  const auto end = static_cast<int32_t>(row.tokens.size());
  if (pair.middle == pair.end) pair.middle = end;
  pair.end = end;
}

void PackedRows::divide_pair(const Piece& piece, size_t start, Row& row) {
  const auto begin = row.counted.begin() + static_cast<std::ptrdiff_t>(start);
  const auto answer = std::find(begin, row.counted.end(), 1);
  const auto second = std::find(answer, row.counted.end(), 0);
  if (second == row.counted.end() || row.counted.back() == 0)
    throw FormatError(format("document {} of the data set is no pair of answers", piece.document));
  const auto middle = static_cast<int32_t>(second - row.counted.begin());
  row.pairs.push_back({.number = piece.document,
                       .begin = static_cast<int32_t>(start),
                       .middle = middle,
                       .end = static_cast<int32_t>(row.counted.size())});
  row.document_starts.push_back(middle);
}

void PackedRows::append_last_label(const Piece& last, Row& row) const {
  const DatasetIndex& index = dataset_->index();
  const int64_t next = index.document_begin(last.document) + last.end;
  const bool is_full = std::ssize(row.tokens) == seq_len_;
  if (is_full && next < index.document_begin(last.document + 1)) dataset_->append(next, 1, vocab_size_, row);
}

}  // namespace stepforge
