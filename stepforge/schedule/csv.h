// SPDX-License-Identifier: Apache-2.0
// Schedules in PyTorch's CSV format of actions (torch.distributed.pipelining), which torchtitan reads too.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// More actions are refused.
inline constexpr int kMaxCsvActions = 1 << 20;

/// One line per rank, cells separated by commas: "2F3" is stage, F, B, I, W or L, and micro-batch. An empty
/// cell is a bubble, which a schedule does not list; empty lines are ignored. "(0F1;1B0)OVERLAP_F_B" is read
/// as its parts in order: what overlaps is decided by lanes. A stage is on the rank whose line lists it.
///
/// Communication of PyTorch's lowered form is ignored: SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD,
/// REDUCE_GRAD. Lowering derives it from the computations, so a file with it and one without mean the same
/// schedule.
///
/// Throws FormatError with `source`, line and column (both from 1) for anything else, a line without
/// computations, a stage on two lines or on none, or too many actions. check_schedule() says whether
/// the schedule can run.
Schedule parse_schedule_csv(std::string_view text, const std::string& source);

/// Throws Error too if the file cannot be read.
Schedule read_schedule_csv(const std::filesystem::path& path);

/// A text that parse_schedule_csv() reads back as the same schedule. PyTorch reads it too, as long as no L is
/// listed.
std::string schedule_csv(const Schedule& schedule);

}  // namespace stepforge
