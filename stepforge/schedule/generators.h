// SPDX-License-Identifier: Apache-2.0
// The schedules of the literature. Each is a function that writes the order of one rank's actions; every kind
// takes any number of micro-batches and of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

enum class ScheduleKind : uint8_t {
  gpipe,                    ///< arXiv 1811.06965
  one_f_one_b,              ///< PipeDream-flush, arXiv 2006.09503
  interleaved_1f1b,         ///< arXiv 2104.04473
  looped_bfs,               ///< breadth-first, arXiv 2211.05953
  interleaved_zero_bubble,  ///< ZB-H1 of arXiv 2401.10241, of several stages per rank
  zbv_zero_bubble,          ///< ZB-V, arXiv 2401.10241 and 2405.15362
  dual_pipe_v,              ///< DualPipe (arXiv 2412.19437) cut in half, github.com/deepseek-ai/DualPipe
};

/// As users type it: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble,
/// DualPipeV.
const char* schedule_name(ScheduleKind kind);
/// Letters in any case. Throws UsageError with the names that there are.
ScheduleKind parse_schedule_name(std::string_view name);
std::vector<std::string> schedule_names();

/// The stages per rank that a schedule takes.
struct StagesPerRank {
  int min = 1;
  int max = 1;
};
StagesPerRank stages_per_rank(ScheduleKind kind);

/// The rank of each stage: two stages per rank in the shape of a V (0 to p-1, then back) for ZBVZeroBubble
/// and DualPipeV, otherwise stage s on rank s % ranks. No schedule lists L: it follows the last stage's
/// forward.
///
/// Throws UsageError if `ranks` or `micro_batches` is less than 1, or `stages_per_rank` does not fit the
/// schedule.
Schedule make_schedule(ScheduleKind kind, int ranks, int stages_per_rank, int micro_batches);

}  // namespace stepforge
