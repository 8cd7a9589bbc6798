// SPDX-License-Identifier: Apache-2.0
// The rows of a job by their global number: a pure function of that number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/data/batch.h"
#include "stepforge/data/length_groups.h"
#include "stepforge/data/row_source.h"
#include "stepforge/data/source_tree.h"
#include "stepforge/data/step_balance.h"

namespace stepforge {

/// What an endless stream knows about the steps that are made of its rows.
struct StepRows {
  int64_t rows_per_step = 0;  ///< the global batch size; 0 if it is not known
  /// An epoch is filled up with rows without labels, so that a step has rows of one epoch only.
  bool fill_epochs = false;
  /// A step has rows of about the same cost (data/length_groups.h); one source only. Fills epochs, so that groups
  /// are steps in every epoch.
  bool group_by_length = false;
  bool balance = false;  ///< a step's rows come in an order that balances ranks (data/step_balance.h)
};

/// Which answers the prompts of rows have (RowSource).
enum class AnswerChoice : uint8_t { own, mismatched };

struct WeightedSource {
  std::shared_ptr<const RowSource> source;
  double weight = 1.0;
};

/// Either an endless mixture (training) or one pass over all sources in order (validation).
class RowStream {
 public:
  /// An endless stream of a tree of sources, which `place` names in messages. One epoch of a weighted list is as many
  /// rows as its entries have together; one whose share of the weight exceeds its share of the rows is repeated more
  /// often than others. Throws what SourceTree throws, and UsageError if `steps` asks for an order that the sources or
  /// the step do not allow.
  static std::shared_ptr<const RowStream> mixture(const std::vector<SourceEntry>& entries,
                                                  const MixtureOptions& options, const StepRows& steps = {},
                                                  const std::string& place = "data.sources");
  /// The same of a flat list.
  static std::shared_ptr<const RowStream> mixture(const std::vector<WeightedSource>& sources, uint64_t seed,
                                                  bool shuffle, const StepRows& steps = {});
  /// All rows of all sources once, source after source.
  static std::shared_ptr<const RowStream> one_pass(const std::vector<SourceEntry>& entries);
  static std::shared_ptr<const RowStream> one_pass(
      const std::vector<std::shared_ptr<const RowSource>>& sources);

  /// Each row of each source once, source after source, whatever the stream takes of them.
  std::shared_ptr<const RowStream> every_row() const;

  /// Rows [first_row, first_row + count) of the stream; fewer, or none, where a one-pass stream ends. Safe to
  /// call from several threads. Throws what the sources throw.
  Batch rows(int64_t first_row, int64_t count, AnswerChoice answers = AnswerChoice::own) const;

  /// What attention over row `row` costs.
  int64_t attention_cost(int64_t row) const;

  int64_t seq_len() const { return seq_len_; }
  /// Number of rows of a one-pass stream; nullopt if the stream is endless.
  std::optional<int64_t> total_rows() const;
  /// Rows and tokens of one epoch, with the rows that follow it to fill a step.
  int64_t rows_per_epoch() const { return padded_rows_; }
  int64_t tokens_per_epoch() const { return padded_rows_ * seq_len_; }
  /// The tokens of an average row, without padding.
  double tokens_per_row() const;
  /// The same of its labels; nullopt if a source does not count them.
  std::optional<double> labels_per_row() const;
  /// Average UTF-8 bytes per token that is predicted, for bits per byte: nobody predicts the first one of a document.
  /// nullopt if a source does not know it.
  std::optional<double> bytes_per_token() const;
  /// Hash of everything that determines the rows: contents, weights, seed, sequence length.
  const std::string& fingerprint() const { return fingerprint_; }
  /// The same with the whole contents of files instead of samples; may read all of them.
  std::string content(const HashOfFile& hash_of) const;
  /// In the order of the numbers in Batch::sources.
  const std::vector<SourceTree::Leaf>& sources() const { return tree_.leaves(); }
  std::vector<std::string> source_names() const;
  /// The part of the rows that come from this source.
  double share(size_t source) const { return sources().at(source).rows / tree_.total_rows(); }

 private:
  RowStream(const std::vector<SourceEntry>& entries, const MixtureOptions& options, bool endless,
            int64_t epoch_multiple, const std::string& place);
  void order_steps(const StepRows& steps, uint64_t seed, std::string& identity);
  /// The source of row `number` and its number there; nullopt if it fills up an epoch.
  std::optional<RowRef> locate(int64_t number) const;
  /// The same before rows are put into another order within their step.
  std::optional<RowRef> locate_unbalanced(int64_t number) const;
  int64_t cost_of(const std::optional<RowRef>& row) const;
  double mean_of_rows(const std::function<double(const RowSource&)>& of_row) const;

  SourceTree tree_;
  bool endless_;
  int64_t seq_len_ = 0;
  int64_t padded_rows_ = 0;                            ///< of an epoch
  std::unique_ptr<const LengthGroupedOrder> grouped_;  ///< null unless rows are grouped by length
  std::unique_ptr<const BalancedSteps> balanced_;      ///< null unless steps are balanced
  std::string fingerprint_;
};

}  // namespace stepforge
