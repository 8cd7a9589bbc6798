#include "step/passes.h"

namespace stepforge {

namespace {

void for_trainable_units(const StepProgram& program, OpKind kind, int level, std::size_t before,
                         std::vector<Insertion>& insertions) {
  for (std::size_t u = 0; u < program.units.size(); ++u) {
    if (program.units[u].trainable) {
      Operation operation;
      operation.kind = kind;
      operation.unit = static_cast<int>(u);
      operation.level = level;
      insertions.push_back({before, std::move(operation)});
    }
  }
}

void finish_leaf(const StepProgram& program, int leaf, std::size_t before,
                 std::vector<Insertion>& insertions) {
  const bool is_last = leaf + 1 == program.micro_batches;
  int level = 0;
  for (; (leaf >> level) != 0; ++level) {
    if (((leaf >> level) & 1) != 0) {
      for_trainable_units(program, OpKind::add_gradient, level, before, insertions);
    } else if (!is_last) {
      break;
    }
  }
  if (!is_last) {
    for_trainable_units(program, OpKind::stash_gradient, level, before, insertions);
  }
}

}  // namespace

void ordered_pass(StepProgram& program) {
  std::vector<Insertion> insertions;
  const std::vector<Operation>& operations = program.operations;
  std::size_t leaf_end = 0;  // one past the last operation of the leaf at hand
  for (int leaf = 0; leaf < program.micro_batches; ++leaf) {
    std::size_t first = leaf_end;
    while (operations[first].micro_batch != leaf) {
      ++first;
    }
    if (leaf > 0) {  // the base list has started the first
      for_trainable_units(program, OpKind::start_gradient, -1, first, insertions);
    }
    leaf_end = first;
    while (operations[leaf_end].micro_batch == leaf) {
      ++leaf_end;
    }
    finish_leaf(program, leaf, leaf_end, insertions);
  }
  insert_operations(program.operations, insertions);
}

}  // namespace stepforge
