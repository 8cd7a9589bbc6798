// SPDX-License-Identifier: Apache-2.0
// The rows of a job's steps, and how its ranks share them.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/data/batch_layout.h"
#include "stepforge/layout/rank_layout.h"

namespace stepforge {

/// The rows of a step that data rank `data_rank` of `data_ranks` reads. In ordered mode a micro-batch is one
/// row, a leaf of the summation tree. A pipeline divides the rows of training.local_batch_size into micro-batches.
///
/// Throws UsageError if the rows of a step do not divide into whole micro-batches on every rank. In ordered
/// mode, also if the rows of a rank are not a subtree of the summation tree: with several ranks, both their
/// number and the rows of each must be powers of two.
BatchLayout plan_batch(const Config& config, int data_ranks = 1, int data_rank = 0,
                       const ContextPart& part = {});

/// The same for the rank of `layout`, which reads its part of the rows with context parallelism. Throws
/// UsageError also if training.seq_len cannot be divided.
BatchLayout plan_batch(const Config& config, const RankLayout& layout);

/// The micro-batches of a step on each rank.
int plan_micro_batches(const Config& config, int world_size);

}  // namespace stepforge
