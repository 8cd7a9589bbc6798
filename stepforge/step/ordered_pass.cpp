// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// A micro-batch in the list: operations [begin, end).
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
  LeafWriter(const StepProgram& program, std::vector<Insertion>& insertions)
      : program_(program), insertions_(insertions) {}

  void start(const Leaf& leaf) {
    for (std::size_t u = 0; u < program_.units.size(); ++u)
      if (program_.units[u].trainable && !program_.units[u].reduces())
        insert(OpKind::start_gradient, static_cast<int>(u), -1, leaf.begin);
  }

  void finish(const Leaf& leaf, int number) {
    const std::vector<std::size_t> ends = ends_of(leaf);
    const bool is_last = number + 1 == program_.micro_batches;
    int level = 0;
    for (; (number >> level) != 0; ++level)
      if (((number >> level) & 1) != 0)
        for_trainable_units(OpKind::add_gradient, level, ends);
      else if (!is_last)
        break;
    if (!is_last) for_trainable_units(OpKind::stash_gradient, level, ends);
  }

 private:
  void insert(OpKind kind, int unit, int level, std::size_t before) {
    Operation operation;
    operation.kind = kind;
    operation.unit = unit;
    operation.level = level;
    insertions_.push_back({before, std::move(operation)});
  }

  void for_trainable_units(OpKind kind, int level, const std::vector<std::size_t>& ends) {
    for (std::size_t u = 0; u < program_.units.size(); ++u)
      if (program_.units[u].trainable) insert(kind, static_cast<int>(u), level, ends[u]);
  }

  /// Where additions and stashes of each unit stand: before this operation.
  std::vector<std::size_t> ends_of(const Leaf& leaf) const {
    std::vector<std::size_t> ends(program_.units.size(), leaf.end);
    for (std::size_t u = 0; u < ends.size(); ++u) {
      if (program_.units[u].reduces()) ends[u] = leaf.begin;
    }
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      const Operation& operation = program_.operations[i];
      if (!has_trait(operation.kind, kContributes)) continue;
      for (const int unit : element(program_.blocks, operation.block).units) {
        if (element(program_.units, unit).reduces()) element(ends, unit) = i + 1;
      }
    }
    return ends;
  }

  const StepProgram& program_;
  std::vector<Insertion>& insertions_;
};

}  // namespace

void ordered_pass(StepProgram& program) {
  std::vector<Insertion> insertions;
  LeafWriter writer(program, insertions);
  const std::vector<Leaf> leaves = find_leaves(program);
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (leaf > 0)  // the base list has started the first
      writer.start(leaves[leaf]);
    writer.finish(leaves[leaf], static_cast<int>(leaf));
  }
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const Insertion& a, const Insertion& b) { return a.before < b.before; });
  insert_operations(program.operations, insertions);
}

}  // namespace stepforge
