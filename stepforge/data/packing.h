// Concat-then-split: all documents of a dataset end to end, cut into rows of equal length.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "stepforge/data/indexed_dataset.h"
#include "stepforge/data/sample_source.h"

namespace stepforge {

/// Row k holds tokens [k T, k T + T], the last one only as a label, so N tokens make floor((N - 1) / T) rows
/// of T.
class PackedSource : public SampleSource {
 public:
  /// `text_bytes`: UTF-8 bytes that the dataset was made from, if known. Throws UsageError if the dataset is
  /// too small for one row.
  PackedSource(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_len, int64_t vocab_size,
               std::optional<int64_t> text_bytes);

  const std::string& name() const override { return name_; }
  int64_t samples() const override { return samples_; }
  int64_t seq_len() const override { return seq_len_; }
  /// Throws FormatError naming file, document, id and vocabulary size if a token id is outside of the
  /// vocabulary.
  void read(int64_t sample, Row& row) const override;
  const std::string& fingerprint() const override { return fingerprint_; }
  int64_t tokens() const override { return dataset_->index().tokens(); }
  std::optional<int64_t> text_bytes() const override { return text_bytes_; }

 private:
  void check_ids(int64_t first_token, const Row& row) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  int64_t seq_len_;
  int64_t vocab_size_;
  std::optional<int64_t> text_bytes_;
  int64_t samples_ = 0;
  std::string name_;
  std::string fingerprint_;
};

}  // namespace stepforge
