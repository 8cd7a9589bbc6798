// SPDX-License-Identifier: Apache-2.0
// What became of the documents of a data set when rows were made of them: tokens, padding, labels, and what was cut or left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/data/packing.h"
#include "stepforge/dataset/indexed_dataset.h"

namespace stepforge {

/// The account of all rows of a source, each read once.
struct RowAccount {
  int64_t rows = 0;
  int64_t documents = 0;             ///< of which rows have tokens
  int64_t tokens = 0;                ///< in the rows, without padding
  int64_t padding = 0;               ///< tokens that fill up rows
  int64_t predicted = 0;             ///< tokens that have one before them in their document and row
  int64_t labels = 0;                ///< of these, those that count in the loss
  int64_t cut_documents = 0;         ///< that lost their end
  int64_t cut_tokens = 0;            ///< that are in no row, of these and after the last full row
  int64_t divided_documents = 0;     ///< whose parts are in several rows
  int64_t unlabelled_documents = 0;  ///< left out, because no token of them that fits into a row has a label
  int64_t unlabelled_tokens = 0;     ///< of these
  int64_t unlabelled_rows = 0;       ///< rows from which nothing is learned

  friend bool operator==(const RowAccount&, const RowAccount&) = default;
};

/// Of every document, the labels that a row of `capacity` tokens has if it begins with the document. The first token of
/// a document is no label. Reads the whole mask of the data set if it has one.
std::vector<int64_t> labels_of_documents(const IndexedDataset& dataset, int64_t capacity);

/// The account of rows that `table` describes.
RowAccount account_of(const IndexedDataset& dataset, const PackTable& table, int64_t seq_len);

/// The account of all documents end to end, cut into `rows` rows of `seq_len` tokens (data/concat_rows.h).
RowAccount account_of_concat(const IndexedDataset& dataset, int64_t rows, int64_t seq_len);

/// Throws UsageError in terms of `name` and of `documents` documents unless the rows have a label.
void require_labels(const RowAccount& account, const std::string& name, int64_t documents, int64_t seq_len);

/// What a user should know about the account, a line each. `noun`: what a document is, "document" or "conversation".
std::vector<std::string> account_notes(const RowAccount& account, std::string_view noun, int64_t seq_len);

/// "1,200 documents, 40,000 tokens, 12,000 labels, 3.0% padding"
std::string account_text(const RowAccount& account);

}  // namespace stepforge
