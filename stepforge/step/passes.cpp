#include "stepforge/step/passes.h"

#include <algorithm>

#include "stepforge/base/error.h"

namespace stepforge {

void insert_operations(std::vector<Operation>& operations, const std::vector<Insertion>& insertions) {
  std::vector<Operation> result;
  result.reserve(operations.size() + insertions.size());
  std::vector<int> moved_to(operations.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i <= operations.size(); ++i) {
    for (; next < insertions.size() && insertions[next].before == i; ++next)
      result.push_back(insertions[next].operation);
    if (i == operations.size()) break;
    moved_to[i] = static_cast<int>(result.size());
    for (int& needed : operations[i].needs) needed = moved_to[static_cast<std::size_t>(needed)];
    result.push_back(std::move(operations[i]));
  }
  operations = std::move(result);
}

bool uses_units(OpKind kind) {
  switch (kind) {
    case OpKind::forward:
    case OpKind::recompute:
    case OpKind::loss:
    case OpKind::loss_forward_backward:
    case OpKind::logits:
    case OpKind::backward:
    case OpKind::backward_input:
      return true;
    default:
      return false;  // backward_weight multiplies activations by gradients
  }
}

bool reads_weights(const StepProgram& program, const Operation& operation) {
  if (operation.kind == OpKind::backward || operation.kind == OpKind::backward_input)
    return program.blocks[static_cast<std::size_t>(operation.block)].weights_in_backward;
  return uses_units(operation.kind);
}

bool contributes(OpKind kind) {
  return kind == OpKind::backward || kind == OpKind::backward_weight || kind == OpKind::loss_forward_backward;
}

bool contributes_to(const StepProgram& program, const Operation& operation, int unit) {
  if (!contributes(operation.kind)) return false;
  const std::vector<int>& units = program.blocks[static_cast<std::size_t>(operation.block)].units;
  return std::find(units.begin(), units.end(), unit) != units.end();
}

StepProgram build_step(const ModelSpec& model, const StepOptions& options) {
  StepProgram program = write_base_program(model, options);
  if (options.kind == ProgramKind::train) {
    recompute_pass(program, model, options.recompute);
    if (options.ordered) {
      if (options.reduce.each_micro_batch) {
        throw UsageError(
            "the ordered sum is one tree over the micro-batches of a step: they cannot be reduced one by "
            "one");
      }
      ordered_pass(program);
    }
    reduce_pass(program, options.reduce);
  }
  gather_pass(program, options.gather);
  offload_pass(program, options.offload);
  buffer_pass(program, model, options);
  return program;
}

}  // namespace stepforge
