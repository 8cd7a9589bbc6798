// SPDX-License-Identifier: Apache-2.0
// The text of `stepforge plan`: what a run will hold and do, from the specification and the step program.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/program.h"

namespace stepforge {

struct PlanText {
  std::string title;            ///< "llama3-8b" or the config's path
  int64_t seq_len = 0;          ///< for FLOPs per token
  int64_t tokens_per_step = 0;  ///< of the whole job
  SymmetryProof proof;          ///< of the programs of all ranks
  std::string verdict;          ///< whether it fits into memory; "" for none
  MachineModel machine;         ///< for the predicted time
  TableOptions table;
};

/// The answer first: parameters, FLOPs, ranks, memory verdict, predicted time, memory at the peak. Then
/// units, blocks, collectives and the operations. Alike neighbours, also alternating ones, are folded into
/// one line. `program` must be the one built from `model`.
std::string render_plan(const ModelSpec& model, const StepProgram& program, const PlanText& text);

}  // namespace stepforge
