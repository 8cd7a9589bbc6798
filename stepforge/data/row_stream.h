// SPDX-License-Identifier: Apache-2.0
// The rows of a job by their global number: a pure function of that number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/data/batch.h"
#include "stepforge/data/length_groups.h"
#include "stepforge/data/mixture.h"
#include "stepforge/data/row_source.h"
#include "stepforge/data/step_balance.h"

namespace stepforge {

struct WeightedSource {
  std::shared_ptr<const RowSource> source;
  double weight = 1.0;
};

/// What an endless stream knows about the steps that are made of its rows.
struct StepRows {
  int64_t rows_per_step = 0;  ///< the global batch size; 0 if it is not known
  bool group_by_length =
      false;             ///< a step has rows of about the same cost (data/length_groups.h); one source only
  bool balance = false;  ///< a step's rows come in an order that balances ranks (data/step_balance.h)
};

/// Either an endless weighted mixture (training) or one pass over all sources in order (validation).
class RowStream {
 public:
  /// An endless stream. One epoch is as many rows as all sources have together; a source whose share of the
  /// weight exceeds its share of the rows is repeated more often than others.
  static std::shared_ptr<const RowStream> mixture(std::vector<WeightedSource> sources, uint64_t seed,
                                                  bool shuffle, const StepRows& steps = {});
  /// All rows of all sources once, source after source.
  static std::shared_ptr<const RowStream> one_pass(std::vector<std::shared_ptr<const RowSource>> sources);

  /// Rows [first_row, first_row + count) of the stream; fewer, or none, where a one-pass stream ends. Safe to
  /// call from several threads. Throws what the sources throw.
  Batch rows(int64_t first_row, int64_t count) const;

  /// What attention over row `row` costs.
  int64_t attention_cost(int64_t row) const { return cost(locate(row)); }

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
  /// The source of a row, and its number there.
  RowRef locate(int64_t row) const;
  int64_t cost(const RowRef& row) const;
  RowRef locate_in_mixture(int64_t row) const;
  RowRef locate_in_one_pass(int64_t row) const;

  std::vector<WeightedSource> sources_;
  std::unique_ptr<const Mixture> mixture_;             ///< null in a one-pass stream
  std::vector<RowOrder> orders_;                       ///< one per source of a mixture
  std::unique_ptr<const LengthGroupedOrder> grouped_;  ///< null unless rows are grouped by length
  std::unique_ptr<const BalancedSteps> balanced_;      ///< null unless steps are balanced
  int64_t seq_len_ = 0;
  int64_t rows_per_epoch_ = 0;
  std::string fingerprint_;
};

}  // namespace stepforge
