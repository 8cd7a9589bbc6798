// SPDX-License-Identifier: Apache-2.0
// How the rows of a step are divided between ranks and micro-batches, and what their labels weigh.
#pragma once

#include <cstdint>

#include "stepforge/data/batch.h"
#include "stepforge/data/loss_weights.h"

namespace stepforge {

/// Micro-batch g of a step that starts at row F covers rows [F + g M, F + (g+1) M) for M =
/// rows_per_micro_batch. It belongs to data rank floor(g / micro_batches()).
struct BatchLayout {
  int64_t seq_len = 0;               ///< tokens of a row
  int64_t rows_per_step = 1;         ///< global batch size, over all ranks
  int64_t rows_per_micro_batch = 1;  ///< local batch size
  int64_t data_ranks = 1;            ///< ranks that read different rows
  int64_t data_rank = 0;             ///< index of this rank among them
  ContextPart part = {};             ///< of each row, that this rank holds
  int64_t slices = 1;                ///< into which its tokens are divided (sequence parallelism)
  LabelWeights label_weights = LabelWeights::token;
  int64_t ahead = 0;        ///< depths of multi-token prediction, whose tokens the batches have too
  bool mismatched = false;  ///< whether batches have their mismatched answers too

  /// Micro-batches of one rank in a step (gradient accumulation).
  int64_t micro_batches() const { return rows_per_step / (rows_per_micro_batch * data_ranks); }
  int64_t tokens_per_step() const { return rows_per_step * seq_len; }
  /// Of this rank.
  int64_t tokens_per_micro_batch() const { return rows_per_micro_batch * seq_len / part.degree; }
  /// Throws UsageError with the numbers, and suggestions that work, if the rows of a step, or the
  /// tokens of a row, cannot be divided.
  void check() const;
};

}  // namespace stepforge
