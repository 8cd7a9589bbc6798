// SPDX-License-Identifier: Apache-2.0
// Concat-then-split packing: the documents of a dataset end to end, cut into rows of equal length.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/data/row_source.h"
#include "stepforge/dataset/indexed_dataset.h"

namespace stepforge {

/// Row k holds tokens [k T, k T + T], T being seq_len, the last one only as a label. So N tokens make
/// floor((N - 1) / T) rows.
class ConcatRows : public RowSource {
 public:
  /// `text_bytes`: UTF-8 bytes that the dataset was made from, if known. `source`: what messages call it, if not by the
  /// name of the dataset. Throws UsageError if the dataset is too small for one row, or no token has a label.
  ConcatRows(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_len, int64_t vocab_size,
             std::optional<int64_t> text_bytes, const std::string& source = "");

  const std::string& name() const override { return name_; }
  int64_t rows() const override { return rows_; }
  int64_t seq_len() const override { return seq_len_; }
  void read(int64_t number, Row& row) const override;
  int64_t attention_cost(int64_t number) const override;
  const std::string& fingerprint() const override { return fingerprint_; }
  std::string content(const HashOfFile& hash_of) const override {
    return fingerprint_ + dataset_->content(hash_of);
  }
  int64_t tokens() const override { return dataset_->index().tokens(); }
  int64_t documents() const override { return dataset_->index().documents(); }
  std::optional<int64_t> text_bytes() const override { return text_bytes_; }
  const RowAccount* account() const override { return &account_; }

 private:
  void find_document_starts(int64_t number, std::vector<int32_t>& starts) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  int64_t seq_len_;
  int64_t vocab_size_;
  std::optional<int64_t> text_bytes_;
  int64_t rows_ = 0;
  RowAccount account_;
  std::string name_;
  std::string fingerprint_;
};

/// Rows [first, first + count) of another source.
class RowRange : public RowSource {
 public:
  RowRange(std::shared_ptr<const RowSource> whole, int64_t first, int64_t count);

  const std::string& name() const override { return whole_->name(); }
  int64_t rows() const override { return count_; }
  int64_t seq_len() const override { return whole_->seq_len(); }
  void read(int64_t number, Row& row) const override { whole_->read(first_ + number, row); }
  void read_mismatched(int64_t number, Row& row) const override {
    whole_->read_mismatched(first_ + number, row);
  }
  int64_t attention_cost(int64_t number) const override { return whole_->attention_cost(first_ + number); }
  const std::string& fingerprint() const override { return fingerprint_; }
  std::string content(const HashOfFile& hash_of) const override {
    return fingerprint_ + whole_->content(hash_of);
  }
  /// These, and the account, in proportion to the rows.
  int64_t tokens() const override { return account_ ? account_->tokens : count_ * seq_len(); }
  int64_t documents() const override;
  int64_t pairs() const override { return whole_->pairs(); }
  /// In proportion to the tokens.
  std::optional<int64_t> text_bytes() const override;
  const RowAccount* account() const override { return account_ ? &*account_ : nullptr; }

 private:
  std::shared_ptr<const RowSource> whole_;
  int64_t first_;
  int64_t count_;
  std::optional<RowAccount> account_;
  std::string fingerprint_;
};

}  // namespace stepforge
