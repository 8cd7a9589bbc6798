// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/build.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/step/passes.h"

namespace stepforge {

void insert_operations(std::vector<Operation>& operations, std::vector<Insertion> insertions) {
  std::ranges::stable_sort(insertions, {}, &Insertion::before);
  std::vector<Operation> result;
  result.reserve(operations.size() + insertions.size());
  std::vector<int> new_index(operations.size());
  auto next = insertions.begin();
  for (std::size_t i = 0; i <= operations.size(); ++i) {
    for (; next != insertions.end() && next->before == i; ++next)
      result.push_back(std::move(next->operation));
    if (i == operations.size()) break;
    new_index[i] = static_cast<int>(result.size());
    for (int& needed : operations[i].needs) needed = element(new_index, needed);
    result.push_back(std::move(operations[i]));
  }
  operations = std::move(result);
}

StepProgram build_step(const ModelSpec& model, const RankLayout& layout, const StepOptions& options,
                       const std::vector<Pass>& added) {
  StepProgram program = write_base_program(model, layout, options);
  if (options.kind == ProgramKind::train) {
    recompute_pass(program, model, options.recompute, options.cost);
    if (options.ordered && options.reduce.each_micro_batch)
      throw UsageError(
          "ordered mode sums all micro-batches in one tree: it cannot reduce each one separately");
    if (options.ordered) ordered_pass(program);
    reduce_pass(program, options.reduce);
  }
  gather_pass(program, options.gather);
  offload_pass(program, options.offload);
  for (const Pass& pass : added) pass(program);
  buffer_pass(program, model, layout, options);
  needs_pass(program);
  return program;
}

}  // namespace stepforge
