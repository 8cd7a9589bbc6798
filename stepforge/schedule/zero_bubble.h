// SPDX-License-Identifier: Apache-2.0
// A schedule made for given times and a limit of memory: the automatic scheduling of Zero Bubble Pipeline
// Parallelism, arXiv 2401.10241, section 3.
#pragma once

#include "stepforge/schedule/schedule.h"
#include "stepforge/schedule/timeline.h"

namespace stepforge {

/// One stage per rank, backwards as I and W. `limit` is the most activations that a rank may hold, in the
/// unit of StageTime::activations. In units of one forward, p is the paper's ZB-1p, 2p its ZB-2p.
///
/// Throws UsageError if `micro_batches` is less than 1, there are no stages, or one forward exceeds the
/// limit.
Schedule zero_bubble_auto(const StageTimes& times, int micro_batches, double limit);

}  // namespace stepforge
