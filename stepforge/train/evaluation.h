// SPDX-License-Identifier: Apache-2.0
// Validation: the loss of a model on held-out rows, by a forward-only program.
#pragma once

#include <cstdint>
#include <functional>

#include "stepforge/base/error.h"
#include "stepforge/data/row_stream.h"
#include "stepforge/train/executor.h"

namespace stepforge {

/// Rows of the data cannot be read. Thrown on all ranks; ranks without the fault say that another rank has it.
class UnreadableRows : public Error {
 public:
  using Error::Error;
};

struct EvaluationResult {
  double loss = 0.0;  ///< mean over valid labels, natural log; of a run on pairs of answers PairResult::loss
  double perplexity = 0.0;
  double bits_per_byte = 0.0;  ///< NaN if the number of bytes of the data is unknown
  int64_t valid_labels = 0;
  int64_t tokens = 0;
  double seconds = 0.0;
  bool stopped = false;  ///< ended early because some rank was asked to stop
};

/// Called with the losses of the tokens of each batch, on the ranks that compute them.
using TokenLosses = std::function<void(const Batch& batch, const at::Tensor& token_loss)>;

/// Evaluates up to `max_batches` batches of `rows` rows of a one-pass stream; -1 = all. Ends early, after a batch
/// before which `stop` returned true on some rank. A collective over the ranks of the executor's store: the data
/// ranks share the batches; the result is the same on all of them, and equal to that of a single rank, with
/// context parallelism up to the last bits. `part`: of each row, that this rank has. Throws Error for an endless
/// stream, UnreadableRows if a rank cannot read its rows. `answers`: which answers the prompts have.
EvaluationResult evaluate(Executor& executor, const RowStream& stream, int64_t rows, int64_t max_batches,
                          const std::function<bool()>& stop = {}, const ContextPart& part = {},
                          const TokenLosses& on_losses = {}, AnswerChoice answers = AnswerChoice::own);

/// The loss of one batch.
struct BatchLoss {
  double loss_sum = 0.0;  ///< of token_loss
  at::Tensor token_loss;  ///< as in LossResult
  at::Tensor logits;      ///< as in LossResult
};

/// Runs one batch through an evaluation program. `with_logits`: the result has logits.
BatchLoss evaluate_batch(Executor& executor, const Batch& batch, bool with_logits);

}  // namespace stepforge
