// SPDX-License-Identifier: Apache-2.0
// Generated rows: a learnable pattern for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "stepforge/base/random.h"
#include "stepforge/data/row_source.h"

namespace stepforge {

struct SyntheticOptions {
  uint64_t seed = 0;
  int64_t vocab_size = 0;
  int64_t seq_len = 0;
  int64_t rows = 65536;         ///< rows in an epoch
  int64_t first_row = 0;        ///< a validation set begins after the rows of the training set
  int64_t document_length = 0;  ///< mean of the random lengths of documents; 0 makes each row one document
};

/// With probability 7/8 a token is a fixed function (a permutation of the vocabulary) of the one before;
/// otherwise it is random. A model that has learnt this reaches a loss of about ln(8) / 8 + 7/8 ln(8/7) +
/// ln(vocab_size) / 8. A row is a pure function of (seed, row).
class SyntheticSource : public RowSource {
 public:
  /// Throws UsageError if a number is out of range.
  explicit SyntheticSource(const SyntheticOptions& options);

  const std::string& name() const override { return name_; }
  int64_t rows() const override { return options_.rows; }
  int64_t seq_len() const override { return options_.seq_len; }
  void read(int64_t number, Row& row) const override;
  int64_t attention_cost(int64_t number) const override;
  const std::string& fingerprint() const override { return fingerprint_; }
  int64_t tokens() const override { return options_.rows * options_.seq_len; }
  /// About as many as there are, by their mean length.
  int64_t documents() const override {
    return options_.document_length > 0 ? std::max(tokens() / options_.document_length, rows()) : rows();
  }
  std::optional<int64_t> text_bytes() const override { return std::nullopt; }

 private:
  int64_t next_start(int64_t number, int64_t start) const;

  SyntheticOptions options_;
  uint64_t key_;
  Permutation successor_;
  std::string name_ = "synthetic";
  std::string fingerprint_;
};

}  // namespace stepforge
