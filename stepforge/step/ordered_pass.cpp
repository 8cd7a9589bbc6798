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

/// Writes the stashes and additions of one unit. A leaf is the contribution of one block for one micro-batch. The tree
/// first adds the leaves of one micro-batch, so it does not matter which other contributions were made between them. If
/// the unit has a copy on another stage, a leaf waits until it has been summed over the copies.
class UnitSums {
 public:
  UnitSums(const StepProgram& program, int index, std::vector<Insertion>& insertions)
      : unit_(element(program.units, index)),
        index_(index),
        blocks_(blocks_of(program, index)),
        tree_(static_cast<int>(blocks_.size()) * program.micro_batches),
        insertions_(insertions) {
    if (!unit_.trainable || blocks_.size() <= (unit_.tie_group >= 0 ? 1 : 2)) return;
    throw UsageError(format(
        "training.reduction = \"ordered\": more than two blocks use unit {}, so the bits of its gradient "
        "would depend on the layout; use reduction = \"fast\"",
        unit_.name));
  }

  /// Operation `at` is the contribution of `block`.
  void contribute(int block, int micro_batch, std::size_t at) {
    start(at);
    if (unit_.tie_group >= 0) return stash({kCopy, micro_batch}, at + 1);
    const auto use = static_cast<int>(std::ranges::find(blocks_, block) - blocks_.begin());
    add_leaf(micro_batch * static_cast<int>(blocks_.size()) + use, at + 1);
  }

  /// Operation `at` sums the leaf over the copies.
  void join_copies(int micro_batch, std::size_t at) {
    start(at);
    add({kCopy, micro_batch}, at);
    add_leaf(micro_batch, at + 1);
  }

 private:
  static constexpr int kCopy = -2;  // level of a node: a leaf that has not been summed over the copies

  static std::vector<int> blocks_of(const StepProgram& program, int unit) {
    std::vector<int> blocks;
    for (int b = 0; b < std::ssize(program.blocks); ++b)
      if (std::ranges::count(element(program.blocks, b).units, unit) > 0) blocks.push_back(b);
    return blocks;
  }

  /// The first gradient, and those of a unit that reduces, are started by other passes.
  void start(std::size_t before) {
    if (!std::exchange(is_first_, false) && !unit_.reduces())
      insertions_.push_back({before, make_operation(OpKind::start_gradient, index_)});
  }

  /// The gradient of a leaf is complete before operation `before`.
  void add_leaf(int leaf, std::size_t before) {
    SumTree::Node node{0, leaf};
    while (!tree_.is_root(node)) {
      const SumTree::Node sibling = tree_.sibling(node);
      if (!stashed_.contains(sibling)) return stash(node, before);
      add(sibling, before);
      node = tree_.parent(node);
    }
  }

  void stash(const SumTree::Node& node, std::size_t before) {
    const int slot = free_slot(node.level);
    stashed_[node] = slot;
    insert(OpKind::stash_gradient, before, slot);
  }

  void add(const SumTree::Node& node, std::size_t before) {
    insert(OpKind::add_gradient, before, stashed_.at(node));
    stashed_.erase(node);
  }

  void insert(OpKind kind, std::size_t before, int slot) {
    insertions_.push_back({before, make_operation(kind, index_)});
    insertions_.back().operation.level = slot;
  }

  /// The slot of the level, unless micro-batches come out of order and another subtree of the level occupies it.
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
  std::vector<int> blocks_;  // that use the unit
  SumTree tree_;
  bool is_first_ = true;
  std::map<SumTree::Node, int> stashed_;  // the slot of each
  std::vector<Insertion>& insertions_;
};

}  // namespace

void ordered_pass(StepProgram& program) {
  std::vector<Insertion> insertions;
  std::vector<UnitSums> sums;
  for (int u = 0; u < std::ssize(program.units); ++u) sums.emplace_back(program, u, insertions);
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.kind == OpKind::tie_leaf)
      element(sums, operation.unit).join_copies(operation.micro_batch, i);
    if (!has_trait(operation.kind, kContributes)) continue;
    for (const int u : element(program.blocks, operation.block).units) {
      if (element(program.units, u).trainable)
        element(sums, u).contribute(operation.block, operation.micro_batch, i);
    }
  }
  insert_operations(program.operations, std::move(insertions));
}

}  // namespace stepforge
