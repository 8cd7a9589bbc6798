// SPDX-License-Identifier: Apache-2.0
// The schedules of the literature, and those of plug-ins. Each is a function that writes the order of one rank's
// actions; every built-in kind takes any number of micro-batches and of ranks.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/registry.h"
#include "stepforge/config/extensions.h"
#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// What a schedule is made for.
struct ScheduleShape {
  int ranks = 1;
  int chunks = 1;  ///< stages per rank
  int micro_batches = 1;
  Extensions extensions = {};  ///< for the section of a plug-in

  /// The stage of a rank's chunk, unless the stages lie in the shape of a V.
  int stage(int chunk, int rank) const { return chunk * ranks + rank; }
};

/// The stages per rank that a schedule takes.
struct StagesPerRank {
  static constexpr int kAnyNumber = std::numeric_limits<int>::max();
  int min = 1;
  int max = 1;
};

/// A way to order the actions; registered by plug-ins.
struct ScheduleKind {
  static constexpr std::string_view kKind = "pipeline schedule";

  std::string_view name;  ///< as users type it
  StagesPerRank stages;
  /// The actions of one rank, in order. L need not be listed: it follows the last stage's forward.
  std::vector<Action> (*actions_of)(const ScheduleShape& shape, int rank) = nullptr;
  /// Two stages per rank, stage s on rank s and then back, instead of stage s on rank s % ranks.
  bool v_shape = false;

  static const ScheduleKind gpipe;             ///< arXiv 1811.06965
  static const ScheduleKind one_f_one_b;       ///< PipeDream-flush, arXiv 2006.09503
  static const ScheduleKind interleaved_1f1b;  ///< arXiv 2104.04473
  static const ScheduleKind looped_bfs;        ///< breadth-first, arXiv 2211.05953
  static const ScheduleKind
      interleaved_zero_bubble;                ///< ZB-H1 of arXiv 2401.10241, of several stages per rank
  static const ScheduleKind zbv_zero_bubble;  ///< ZB-V, arXiv 2401.10241 and 2405.15362
  /// DualPipe (arXiv 2412.19437) cut in half, github.com/deepseek-ai/DualPipe
  static const ScheduleKind dual_pipe_v;
};

/// GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, then those of plug-ins.
std::vector<ScheduleKind> schedule_kinds(const Registry& registry = {});

/// Ignores case. Throws UsageError that lists the names.
ScheduleKind find_schedule(std::string_view name, const Registry& registry = {});

/// Throws UsageError if `ranks` or `micro_batches` is less than 1, or `stages_per_rank` does not fit the
/// schedule. A schedule of a plug-in may be impossible; check_schedule() tells.
Schedule make_schedule(const ScheduleKind& kind, int ranks, int stages_per_rank, int micro_batches,
                       const Extensions& extensions = {});

}  // namespace stepforge
