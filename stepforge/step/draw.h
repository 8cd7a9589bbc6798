// SPDX-License-Identifier: Apache-2.0
// A step program as a table for the terminal, and as a trace for chrome://tracing or ui.perfetto.dev.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stepforge/step/program.h"
#include "stepforge/step/simulate.h"

namespace stepforge {

struct TableOptions {
  bool all_micro_batches = false;  ///< otherwise the first one, and the last one if it differs
  bool all_repetitions = false;    ///< otherwise repetitions, such as the layers of a model, are folded
};

/// One line per operation: index, lane, operation_text(), bytes moved, workspace, live bytes after it.
std::string operation_table(const StepProgram& program, const TableOptions& options = {});

/// The times of one step, predicted or measured.
struct TracedRun {
  std::string name;
  std::vector<OperationTime> times;  ///< of each operation
};

/// Trace-event JSON: for each run a process with one thread per lane, arrows from each operation to those that need it, and
/// a counter track of live bytes.
std::string trace_json(const StepProgram& program, const std::vector<TracedRun>& runs);

/// The same for programs that ran together: a process for each. `times` are those of each program.
std::string trace_json(std::span<const StepProgram> programs, const std::string& name,
                       const std::vector<std::vector<OperationTime>>& times);

}  // namespace stepforge
