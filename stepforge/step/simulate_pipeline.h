// SPDX-License-Identifier: Apache-2.0
// Predicts when the operations of all ranks of a pipeline run, and which of them determine the length of the step.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stepforge/step/program.h"
#include "stepforge/step/simulate.h"

namespace stepforge {

/// An operation of one of several programs.
struct OperationPlace {
  int program = -1;  ///< -1: none
  int operation = -1;

  bool operator==(const OperationPlace&) const = default;
};

/// The times of programs that ran together.
struct PipelineRun {
  std::vector<std::vector<OperationTime>> times;  ///< of each program
  /// The operations, from the beginning to the end of the step, each of which started when the one before it
  /// ended: a step is not shorter unless one of these is.
  std::vector<OperationPlace> critical_path;

  double seconds() const;
};

/// Simulates the programs of some ranks, such as those of one pipeline. Operations of a lane run one after
/// the other; each starts when its lane is free, its `needs` have finished, and its partners among `programs`
/// have come as far: a send and its receive run at the same time (no buffer lies between them), and so does a
/// collective of several of these ranks. Ranks outside `programs` are never waited for: in a job that was
/// proved by classes they run in step with one of these. Exchanges inside blocks do not wait either; they are
/// between ranks of one stage. Where more ranks of a host compute than it has cores, they share them.
///
/// Throws Error if the programs wait for each other in a cycle.
PipelineRun simulate_pipeline(std::span<const StepProgram> programs, const MachineModel& machine);

/// The share of the step in which the compute lane of a program runs nothing, and the mean of all programs.
double bubble_share(std::span<const StepProgram> programs, const PipelineRun& run, std::size_t program);
double bubble_share(std::span<const StepProgram> programs, const PipelineRun& run);

/// What the critical path is made of, largest share first: "forward 40 %, backward 55 %, messages between
/// stages 5 %". Kinds below half a percent are summed up.
std::string critical_path_text(std::span<const StepProgram> programs, const PipelineRun& run);

}  // namespace stepforge
