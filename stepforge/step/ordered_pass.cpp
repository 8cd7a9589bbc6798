// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// The operations [begin, end) of one micro-batch, a leaf of the summation tree.
struct Leaf {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<Leaf> find_leaves(const StepProgram& program) {
  std::vector<Leaf> leaves;
  const std::vector<Operation>& operations = program.operations;
  std::size_t at = 0;
  for (int leaf = 0; leaf < program.micro_batches; ++leaf) {
    while (operations[at].micro_batch != leaf) ++at;
    const std::size_t begin = at;
    while (operations[at].micro_batch == leaf) ++at;
    leaves.push_back({begin, at});
  }
  return leaves;
}

class LeafWriter {
 public:
  explicit LeafWriter(const StepProgram& program) : program_(program) {}

  /// One increment of the binary counter that passes.h describes: `number` is the leaf's index in the tree.
  void write(const Leaf& leaf, int number) {
    if (number > 0) start(leaf);  // the base program starts the first
    const std::vector<std::size_t> ends = gradient_ends(leaf);
    const bool is_last = number + 1 == program_.micro_batches;
    int level = 0;
    for (; (number >> level) != 0; ++level)
      if (((number >> level) & 1) != 0)
        for_trainable_units(OpKind::add_gradient, level, ends);
      else if (!is_last)
        break;
    if (!is_last) for_trainable_units(OpKind::stash_gradient, level, ends);
  }

  std::vector<Insertion> take() { return std::move(insertions_); }

 private:
  /// Starts the gradients that are accumulated in place.
  void start(const Leaf& leaf) {
    for (int u = 0; u < std::ssize(program_.units); ++u) {
      const ProgramUnit& unit = element(program_.units, u);
      if (unit.trainable && !unit.reduces())
        insertions_.push_back({leaf.begin, make_operation(OpKind::start_gradient, u)});
    }
  }

  void for_trainable_units(OpKind kind, int level, const std::vector<std::size_t>& ends) {
    for (int u = 0; u < std::ssize(program_.units); ++u) {
      if (!element(program_.units, u).trainable) continue;
      insertions_.push_back({element(ends, u), make_operation(kind, u)});
      insertions_.back().operation.level = level;
    }
  }

  /// For each unit, the operation before which its additions and stashes are inserted: the end of the leaf,
  /// or for a unit that is reduced, the operation after its last contribution.
  std::vector<std::size_t> gradient_ends(const Leaf& leaf) const {
    std::vector<std::size_t> ends(program_.units.size(), leaf.end);
    for (std::size_t u = 0; u < ends.size(); ++u)
      if (program_.units[u].reduces()) ends[u] = leaf.begin;
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      const Operation& operation = program_.operations[i];
      if (!has_trait(operation.kind, kContributes)) continue;
      for (const int unit : element(program_.blocks, operation.block).units)
        if (element(program_.units, unit).reduces()) element(ends, unit) = i + 1;
    }
    return ends;
  }

  const StepProgram& program_;
  std::vector<Insertion> insertions_;
};

}  // namespace

void ordered_pass(StepProgram& program) {
  LeafWriter writer(program);
  const std::vector<Leaf> leaves = find_leaves(program);
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) writer.write(leaves[leaf], static_cast<int>(leaf));
  insert_operations(program.operations, writer.take());
}

}  // namespace stepforge
