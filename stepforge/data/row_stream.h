// SPDX-License-Identifier: Apache-2.0
// The rows of a job by their global number: a pure function of that number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/data/batch.h"
#include "stepforge/data/row_source.h"
#include "stepforge/data/source_tree.h"

namespace stepforge {

struct WeightedSource {
  std::shared_ptr<const RowSource> source;
  double weight = 1.0;
};

/// Either an endless mixture (training) or one pass over all sources in order (validation).
class RowStream {
 public:
  /// An endless stream of a tree of sources, which `place` names in messages. One epoch of a weighted list is as many
  /// rows as its entries have together; one whose share of the weight exceeds its share of the rows is repeated more
  /// often than others. Each epoch is followed by rows without labels up to a multiple of `epoch_multiple`, so that a
  /// step of that many rows has rows of one epoch only. Throws what SourceTree throws.
  static std::shared_ptr<const RowStream> mixture(const std::vector<SourceEntry>& entries,
                                                  const MixtureOptions& options, int64_t epoch_multiple = 1,
                                                  const std::string& place = "data.sources");
  /// The same of a flat list.
  static std::shared_ptr<const RowStream> mixture(const std::vector<WeightedSource>& sources, uint64_t seed,
                                                  bool shuffle);
  /// All rows of all sources once, source after source.
  static std::shared_ptr<const RowStream> one_pass(const std::vector<SourceEntry>& entries);
  static std::shared_ptr<const RowStream> one_pass(
      const std::vector<std::shared_ptr<const RowSource>>& sources);

  /// Rows [first_row, first_row + count) of the stream; fewer, or none, where a one-pass stream ends. Safe to
  /// call from several threads. Throws what the sources throw.
  Batch rows(int64_t first_row, int64_t count) const;

  int64_t seq_len() const { return seq_len_; }
  /// Number of rows of a one-pass stream; nullopt if the stream is endless.
  std::optional<int64_t> total_rows() const;
  /// Rows and tokens of one epoch, with the rows that follow it to fill a step.
  int64_t rows_per_epoch() const { return padded_rows_; }
  int64_t tokens_per_epoch() const { return padded_rows_ * seq_len_; }
  /// Average UTF-8 bytes per token, for bits per byte; nullopt if a source does not know it.
  std::optional<double> bytes_per_token() const;
  /// Hash of everything that determines the rows: contents, weights, seed, sequence length.
  const std::string& fingerprint() const { return fingerprint_; }
  /// In the order of the numbers in Batch::sources.
  const std::vector<SourceTree::Leaf>& sources() const { return tree_.leaves(); }
  std::vector<std::string> source_names() const;
  /// The part of the rows that come from this source.
  double share(size_t source) const { return sources().at(source).rows / tree_.total_rows(); }

 private:
  RowStream(const std::vector<SourceEntry>& entries, const MixtureOptions& options, bool endless,
            int64_t epoch_multiple, const std::string& place);
  /// The number in the tree of row `number` of the stream; nullopt if it follows an epoch to fill a step.
  std::optional<int64_t> number_in_tree(int64_t number) const;

  SourceTree tree_;
  bool endless_;
  int64_t seq_len_ = 0;
  int64_t padded_rows_ = 0;  ///< of an epoch
  std::string fingerprint_;
};

}  // namespace stepforge
