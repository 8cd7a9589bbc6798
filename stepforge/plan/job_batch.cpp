// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_batch.h"

#include <bit>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/pair_losses.h"
#include "stepforge/plan/job_mesh.h"

namespace stepforge {

namespace {

bool is_power_of_two(int64_t value) {
  return std::has_single_bit(static_cast<uint64_t>(value));
}

void check_ordered(const BatchLayout& batch) {
  const int64_t data_ranks = batch.data_ranks;
  if (data_ranks == 1) return;
  if (!is_power_of_two(data_ranks)) {
    throw UsageError(format(
        "training.reduction = \"ordered\": {} ranks read different rows, but their sums are parts of one "
        "binary tree over all rows only if the number of ranks is a power of two; use {} or {} ranks, or "
        "reduction = \"fast\"",
        data_ranks, std::bit_floor(static_cast<uint64_t>(data_ranks)),
        std::bit_ceil(static_cast<uint64_t>(data_ranks))));
  }
  if (!is_power_of_two(batch.micro_batches())) {
    const auto rows = static_cast<uint64_t>(batch.micro_batches());
    throw UsageError(
        format("training.reduction = \"ordered\": each of {} ranks has {} rows of a step, "
               "but their sums are parts of one binary tree over all rows only if that is a power of two; "
               "set training.global_batch_size to {} or {}, or reduction = \"fast\"",
               data_ranks, rows, std::bit_floor(rows) * static_cast<uint64_t>(data_ranks),
               std::bit_ceil(rows) * static_cast<uint64_t>(data_ranks)));
  }
}

/// The rows of a micro-batch in a pipeline, for a data rank that has `rows` in a step: a part of the `most` rows that
/// it would compute at once without one.
int64_t pipeline_rows(const ParallelismConfig& parallelism, int64_t most, int64_t rows) {
  if (parallelism.pipeline_parallel_degree == 1) return most;
  if (parallelism.pipeline_parallel_microbatch_size > 0) return parallelism.pipeline_parallel_microbatch_size;
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) return most;
  for (int64_t size = most; size > 1; --size)
    if (most % size == 0 && rows / size >= 2 * parallelism.pipeline_parallel_degree) return size;
  return 1;
}

}  // namespace

BatchLayout plan_batch(const Config& config, int data_ranks, int data_rank, const ContextPart& part) {
  const TrainingConfig& training = config.training;
  const bool ordered = training.reduction == ReductionMode::ordered;
  BatchLayout batch;
  batch.seq_len = training.seq_len;
  batch.rows_per_step =
      training.global_batch_size > 0 ? training.global_batch_size : training.local_batch_size * data_ranks;
  batch.rows_per_micro_batch = ordered ? 1 : training.local_batch_size;
  batch.data_ranks = data_ranks;
  batch.data_rank = data_rank;
  batch.part = part;
  batch.label_weights = training.loss_reduction;
  batch.mismatched = config.preference.enabled() && find_pair_loss(config.preference).has_baseline;
  batch.check();
  if (ordered) check_ordered(batch);
  batch.rows_per_micro_batch =
      pipeline_rows(config.parallelism, batch.rows_per_micro_batch, batch.rows_per_step / data_ranks);
  return batch;
}

BatchLayout plan_batch(const Config& config, const RankLayout& layout) {
  BatchLayout batch = plan_batch(
      config, layout.data_ranks, layout.data_rank,
      {layout.index_in(layout.context_group), layout.dims.cp,
       config.parallelism.context_parallel_load_balance == LoadBalance::head_tail, layout.dims.cp_heads});
  if (config.parallelism.enable_sequence_parallel) batch.slices = layout.dims.tp;
  batch.check();
  return batch;
}

int plan_micro_batches(const Config& config, int world_size) {
  return static_cast<int>(plan_batch(config, plan_data_ranks(config, world_size)).micro_batches());
}

}  // namespace stepforge
