// SPDX-License-Identifier: Apache-2.0
// The two schedules whose stages go to the last rank and back: rank r has stages r and 2p-1-r. Used by
// generators.cpp.
#pragma once

#include <vector>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// ZB-V: arXiv 2401.10241 (appendix) and 2405.15362, in the order of PyTorch's ScheduleZBVZeroBubble.
std::vector<Action> zbv_actions(int ranks, int rank, int micro_batches);

/// DualPipeV: github.com/deepseek-ai/DualPipe, dualpipe/dualpipev.py. A forward and a backward that it
/// overlaps follow one another here; whether they overlap is for the lanes to decide.
std::vector<Action> dual_pipe_v_actions(int ranks, int rank, int micro_batches);

}  // namespace stepforge
