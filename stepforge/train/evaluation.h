// Validation: the loss of a model on held-out rows, by a forward-only program.
#pragma once

#include <cstdint>
#include <functional>

#include "stepforge/data/row_stream.h"
#include "stepforge/train/executor.h"

namespace stepforge {

struct EvaluationResult {
  double loss = 0.0;  ///< mean over valid labels, natural log
  double perplexity = 0.0;
  double bits_per_byte = 0.0;  ///< NaN if the data does not know its bytes
  int64_t valid_labels = 0;
  int64_t tokens = 0;
  double seconds = 0.0;
  bool stopped = false;  ///< some rank was asked to stop before the end
};

/// Runs `program` (evaluation) on up to `max_batches` batches of `rows` rows of a one-pass stream; -1 = all.
/// `stop` is asked between batches and ends the evaluation early. Over the data ranks of `groups`, which call
/// it together, the batches go round, and the result is that of one rank, the same on all.
EvaluationResult evaluate(Executor& executor, const RowStream& stream, int64_t rows, int64_t max_batches,
                          const std::function<bool()>& stop = {}, const DataGroups& groups = {});

/// One batch through an evaluation program; its result with per-token losses and, if asked, logits.
LossResult evaluate_batch(Executor& executor, const Batch& batch, bool with_logits);

}  // namespace stepforge
