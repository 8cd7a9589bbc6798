// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of pairs of answers, or of judged answers: of the reference, and in validation; of a
// reward model scores.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/data/row_stream.h"
#include "stepforge/metrics/record.h"
#include "stepforge/modelspec/pair_loss.h"
#include "stepforge/nn/pair_terms.h"
#include "stepforge/nn/preference_step.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/train/evaluation.h"

namespace stepforge {

/// The log-probability and the tokens of both answers of each pair of a stream's sources.
class PairTable {
 public:
  PairTable() = default;
  /// Zeros for the pairs of `stream`.
  explicit PairTable(const RowStream& stream);

  /// Adds what a rank knows of the answers of a batch.
  void add(const PairLoss& loss, const Batch& batch, const at::Tensor& token_loss);
  /// Adds the tables of all ranks of `store`, of which those with equal losses add() once.
  void sum(const ModelStore& store);
  /// [pairs of the batch, 2] fp64: log-probabilities; undefined if the table is empty. Throws Error for a pair that was never added.
  at::Tensor of(const Batch& batch) const;
  /// The pairs of all sources that were added: [pairs, 2] fp64 each, by source and number. `other`: their log-probabilities
  /// in another table of the same stream, undefined if that is empty.
  PairScores scores(const PairTable& other) const;

  bool empty() const { return sources_.empty(); }
  int64_t pairs() const;
  /// [pairs of the source, 4] fp64 of each source: log-probabilities, tokens.
  const std::vector<at::Tensor>& tensors() const { return sources_; }

 private:
  std::vector<at::Tensor> sources_;
};

struct PreferenceData {
  PairLoss loss;
  PairTable training;    ///< of the reference; empty if the loss has none
  PairTable validation;  ///< the same
  // Of judged answers with a baseline, the same of mismatched ones:
  PairTable mismatched_training;
  PairTable mismatched_validation;
  bool computed_now = false;  ///< by another model, in this start

  int64_t pairs() const { return training.pairs() + validation.pairs(); }
};

/// The numbers of pairs in validation.
struct PairResult {
  double loss = 0.0;  ///< the mean over pairs or judged answers, with the cross-entropy of sft_weight
  std::array<double, kPairFigures> figures{};  ///< pair_figures()
};
PairResult pair_result(const PairLoss& loss, const PairScores& scores);

/// The baseline of judged answers (modelspec/pair_loss.h), by the scores of mismatched ones.
double baseline_of(const PairScores& mismatched);
/// The same of a step, by a pass of the evaluator's program over its mismatched answers. A collective over its ranks; the result has
/// the same bits on all of them, and unless they have parts of rows on any number of ranks. `micro_batches`: of this rank. Throws Error if they have no
/// mismatched answers.
double step_baseline(const PreferenceData& data, Executor& evaluator,
                     const std::vector<Batch>& micro_batches);

/// For evaluate(): adds to `table` on one of the ranks of `store` that have the same losses. `table` and `loss` must outlive it.
TokenLosses adding_to(PairTable& table, const PairLoss& loss, const ModelStore& store);

/// Runs all rows of a one-pass stream through the executor's program. A collective over its ranks. `part`: of each row, that this
/// rank has. `stop` is called before each batch; throws Error on all ranks if it returns true on one.
PairTable score_pairs(const PairLoss& loss, Executor& executor, const RowStream& stream, int64_t rows,
                      const ContextPart& part, const std::function<bool()>& stop = {},
                      AnswerChoice answers = AnswerChoice::own);

/// Adds the means of PairReport::figures, which are sums over all ranks, under the names of TRL after `prefix`; nothing if there
/// was no pair. Scores are rewards, and have no log-probabilities.
void add_pair_metrics(const PairLoss& loss, std::span<const double> figures, std::string_view prefix,
                      MetricsRecord& record);

/// What the tables of a reference belong to.
struct ReferenceIdentity {
  std::string data;  ///< of the rows
  /// Of preference.reference: of its weights, nullopt if they are not known now. "": the reference is the model at the start of the run.
  std::optional<std::string> model;
};

/// Empty tables for the reference of `training` and `validation`, which may be null.
void prepare_references(PreferenceData& data, const RowStream& training, const RowStream* validation);

/// The tables are one file of safetensors, which names what they belong to.
void save_references(const std::filesystem::path& file, const PreferenceData& data,
                     const ReferenceIdentity& identity);
/// Throws UsageError if there is no such file, or it is of other data or another model, or not of the shapes that `data` has.
void load_references(const std::filesystem::path& file, const ReferenceIdentity& identity,
                     PreferenceData& data);

}  // namespace stepforge
