// SPDX-License-Identifier: Apache-2.0
// The text of `stepforge plan`: the memory, time and operations of a run, from specification and step
// program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/program.h"

namespace stepforge {

struct PlanText {
  std::string title;            ///< "llama3-8b" or the path of the config
  int64_t seq_len = 0;          ///< for FLOPs per token
  int64_t tokens_per_step = 0;  ///< of the whole job
  SymmetryProof proof;          ///< of the programs of all ranks
  std::string verdict;          ///< whether the run fits into memory; may be empty
  MachineModel machine;         ///< for the predicted time
  std::string rates_note;       ///< what its rates are worth; may be empty
  /// When the operations of the program run, if other ranks are simulated too; otherwise empty.
  std::vector<OperationTime> times;
  std::string pipeline;               ///< text about the pipeline; may be empty
  std::optional<TableOptions> table;  ///< of the operations; not set: without it
};

/// A summary (parameters, FLOPs, ranks, verdict, predicted time, peak memory), then tables of units, blocks,
/// collectives and, if asked for, operations. Repeated lines are folded. `program` must be built from `part`, which is
/// `model` or, in a pipeline, this rank's part of it.
std::string render_plan(const ModelSpec& model, const ModelSpec& part, const StepProgram& program,
                        const PlanText& text);

}  // namespace stepforge
