// SPDX-License-Identifier: Apache-2.0
// The rows of a job by their global number: a pure function of that number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/data/batch.h"
#include "stepforge/data/mixture.h"
#include "stepforge/data/row_source.h"

namespace stepforge {

struct WeightedSource {
  std::shared_ptr<const RowSource> source;
  double weight = 1.0;
};

/// Either an endless weighted mixture (training) or one pass over all sources in order (validation).
class RowStream {
 public:
  /// An endless stream. One epoch is as many rows as all sources have together; a source whose share of the
  /// weight exceeds its share of the rows is repeated more often than others.
  static std::shared_ptr<const RowStream> mixture(std::vector<WeightedSource> sources, uint64_t seed,
                                                  bool shuffle);
  /// All rows of all sources once, source after source.
  static std::shared_ptr<const RowStream> one_pass(std::vector<std::shared_ptr<const RowSource>> sources);

  /// Rows [first_row, first_row + count) of the stream; fewer, or none, where a one-pass stream ends. Safe to
  /// call from several threads. Throws what the sources throw.
  Batch rows(int64_t first_row, int64_t count) const;

  int64_t seq_len() const { return seq_len_; }
  /// Number of rows of a one-pass stream; nullopt if the stream is endless.
  std::optional<int64_t> total_rows() const;
  /// Rows and tokens of one epoch: the sum over the sources.
  int64_t rows_per_epoch() const { return rows_per_epoch_; }
  int64_t tokens_per_epoch() const { return rows_per_epoch_ * seq_len_; }
  /// Average UTF-8 bytes per token, for bits per byte; nullopt if a source does not know it.
  std::optional<double> bytes_per_token() const;
  /// Hash of everything that determines the rows: contents, weights, seed, sequence length.
  const std::string& fingerprint() const { return fingerprint_; }
  const std::vector<WeightedSource>& sources() const { return sources_; }

 private:
  explicit RowStream(std::vector<WeightedSource> sources);
  RowRef locate_in_one_pass(int64_t row) const;

  std::vector<WeightedSource> sources_;
  std::unique_ptr<const Mixture> mixture_;  ///< null in a one-pass stream
  std::vector<RowOrder> orders_;            ///< one per source of a mixture
  int64_t seq_len_ = 0;
  int64_t rows_per_epoch_ = 0;
  std::string fingerprint_;
};

}  // namespace stepforge
