// The text of `stepforge plan`: what a run will hold and do, from specification and step program alone.
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
  TableOptions table;
};

/// Units, blocks, parameters, FLOPs, bytes, collectives, the predicted peak, the operation table. Alike
/// neighbours are folded into one line. `program` must be the one built from `model`.
std::string render_plan(const ModelSpec& model, const StepProgram& program, const PlanText& text);

}  // namespace stepforge
