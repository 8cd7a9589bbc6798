// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// The binary tree over the micro-batches of a step. Subtrees of 2^level leaves are `index`-th of their level; those
/// of the set bits of the number of leaves are joined by a chain, the smallest first.
class SumTree {
 public:
  struct Node {
    int level = 0;  ///< kChain: the sum of the `index` + 1 smallest of the largest subtrees
    int index = 0;

    auto operator<=>(const Node&) const = default;
  };
  static constexpr int kChain = -1;

  explicit SumTree(int leaves) : leaves_(leaves) {}

  bool is_root(const Node& node) const {
    return node.level == kChain ? node.index + 1 == roots() : roots() == 1 && is_largest(node);
  }
  Node sibling(const Node& node) const {
    if (node.level == kChain) return largest(node.index + 1);
    if (!is_largest(node)) return {node.level, node.index ^ 1};
    const int number = number_of(node);
    if (number == 0) return largest(1);
    return number == 1 ? largest(0) : Node{kChain, number - 1};
  }
  Node parent(const Node& node) const {
    if (node.level == kChain) return {kChain, node.index + 1};
    if (!is_largest(node)) return {node.level + 1, node.index / 2};
    return {kChain, std::max(1, number_of(node))};
  }

 private:
  int roots() const { return std::popcount(static_cast<unsigned>(leaves_)); }
  /// Not part of a larger complete subtree.
  bool is_largest(const Node& node) const { return ((node.index / 2 + 1) << (node.level + 1)) > leaves_; }
  /// Which of the largest subtrees it is, the smallest first.
  int number_of(const Node& node) const {
    return std::popcount(static_cast<unsigned>(leaves_) & ((1U << static_cast<unsigned>(node.level)) - 1U));
  }
  Node largest(int number) const {
    unsigned rest = static_cast<unsigned>(leaves_);
    for (int i = 0; i < number; ++i) rest &= rest - 1;
    const int level = std::countr_zero(rest);
    return {level, (leaves_ >> level) - 1};
  }

  int leaves_;
};

/// Writes the stashes and additions of one unit.
class UnitSums {
 public:
  UnitSums(const ProgramUnit& unit, int index, int leaves) : unit_(unit), index_(index), tree_(leaves) {}

  /// The gradient of the micro-batch is complete before operation `end`. `begin`: its first contribution.
  void add_leaf(int micro_batch, std::size_t begin, std::size_t end, std::vector<Insertion>& insertions) {
    if (!is_first_ && !unit_.reduces())
      insertions.push_back({begin, make_operation(OpKind::start_gradient, index_)});
    is_first_ = false;
    SumTree::Node node{0, micro_batch};
    while (!tree_.is_root(node)) {
      const auto other = stashed_.find(tree_.sibling(node));
      if (other == stashed_.end()) {
        stashed_[node] = free_slot(node.level);
        return insert(OpKind::stash_gradient, end, stashed_[node], insertions);
      }
      insert(OpKind::add_gradient, end, other->second, insertions);
      stashed_.erase(other);
      node = tree_.parent(node);
    }
  }

 private:
  void insert(OpKind kind, std::size_t before, int slot, std::vector<Insertion>& insertions) const {
    insertions.push_back({before, make_operation(kind, index_)});
    insertions.back().operation.level = slot;
  }

  /// That of the level, unless micro-batches come out of order and another subtree of the level has it.
  int free_slot(int level) const {
    const auto is_free = [&](int slot) {
      return std::ranges::none_of(stashed_, [&](const auto& entry) { return entry.second == slot; });
    };
    int slot = std::max(0, level);
    while (!is_free(slot)) ++slot;
    return slot;
  }

  const ProgramUnit& unit_;
  int index_;
  SumTree tree_;
  bool is_first_ = true;
  std::map<SumTree::Node, int> stashed_;  // the slot of each
};

/// The contributions to the gradient of one unit that are being collected.
struct Leaf {
  int micro_batch = -1;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// For each unit, its leaves in list order.
std::vector<std::vector<Leaf>> find_leaves(const StepProgram& program) {
  std::vector<std::vector<Leaf>> leaves(program.units.size());
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (!has_trait(operation.kind, kContributes)) continue;
    for (const int unit : element(program.blocks, operation.block).units) {
      std::vector<Leaf>& own = element(leaves, unit);
      if (own.empty() || own.back().micro_batch != operation.micro_batch)
        own.push_back({operation.micro_batch, i, i});
      own.back().end = i + 1;
    }
  }
  return leaves;
}

}  // namespace

void ordered_pass(StepProgram& program) {
  std::vector<Insertion> insertions;
  const std::vector<std::vector<Leaf>> leaves = find_leaves(program);
  for (int u = 0; u < std::ssize(program.units); ++u) {
    const ProgramUnit& unit = element(program.units, u);
    if (!unit.trainable) continue;
    if (std::ssize(element(leaves, u)) > program.micro_batches) {
      throw UsageError(
          format("training.reduction = \"ordered\": unit {} gets gradients of several micro-batches in turn, "
                 "from stages that "
                 "are on one rank; use another schedule, or reduction = \"fast\"",
                 unit.name));
    }
    UnitSums sums(unit, u, program.micro_batches);
    for (const Leaf& leaf : element(leaves, u))
      sums.add_leaf(leaf.micro_batch, leaf.begin, leaf.end, insertions);
  }
  insert_operations(program.operations, std::move(insertions));
}

}  // namespace stepforge
