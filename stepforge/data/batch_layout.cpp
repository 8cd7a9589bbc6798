// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/batch_layout.h"

#include <limits>
#include <numeric>
#include <string>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The multiples of `step` next to `value`.
std::string nearest_multiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below == 0 ? format("{}", step) : format("{} or {}", below, below + step);
}

}  // namespace

void BatchLayout::check() const {
  if (rows_per_step < 1 || rows_per_micro_batch < 1 || data_ranks < 1 || data_rank < 0 ||
      data_rank >= data_ranks) {
    throw UsageError(
        format("batches of {} rows in micro-batches of {} on data rank {} of {}: all must be positive",
               rows_per_step, rows_per_micro_batch, data_rank, data_ranks));
  }
  if (seq_len % part.granularity() != 0) {
    throw UsageError(format(
        "training.seq_len = {} is not a multiple of {}: context parallelism over {} ranks divides a row into "
        "{} equal chunks{}; set seq_len to {}",
        seq_len, part.granularity(), part.degree, part.granularity(),
        part.head_tail ? ", two of each rank (context_parallel_load_balance = \"head_tail\")" : "",
        nearest_multiples(seq_len, part.granularity())));
  }
  if (const int64_t held = part.degree * slices; seq_len % held != 0) {
    throw UsageError(format(
        "training.seq_len = {} is not a multiple of {}: sequence parallelism divides the {} tokens that a "
        "rank has of a row into equal slices for {} ranks of tensor parallelism; set seq_len to {}, or "
        "parallelism.enable_sequence_parallel = false",
        seq_len, held, seq_len / part.degree, slices,
        nearest_multiples(seq_len, std::lcm(held, part.granularity()))));
  }
  int64_t rows_at_once = 0;
  if (__builtin_mul_overflow(rows_per_micro_batch, data_ranks, &rows_at_once)) {
    rows_at_once = std::numeric_limits<int64_t>::max();
  }
  if (rows_per_step % rows_at_once == 0) return;
  throw UsageError(
      format("training.global_batch_size = {} cannot be divided: {} ranks read micro-batches of {} rows "
             "(training.local_batch_size), {} rows at once; set global_batch_size to {}",
             rows_per_step, data_ranks, rows_per_micro_batch, rows_at_once,
             nearest_multiples(rows_per_step, rows_at_once)));
}

}  // namespace stepforge
