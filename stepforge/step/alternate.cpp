// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/alternate.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace stepforge {

namespace {

bool has_experts(const StepProgram& program, int block) {
  return block >= 0 && element(program.blocks, block).experts > 0;
}

/// Whether the block takes a value that a combine has made.
bool takes_combined(const StepProgram& program, const ProgramBlock& block) {
  return std::ranges::any_of(
      block.inputs, [&](int v) { return has_experts(program, element(program.values, v).producer); });
}

/// Whether a dispatch sends a value that the block has made.
bool makes_sent(const StepProgram& program, int block) {
  return std::ranges::any_of(program.blocks, [&](const ProgramBlock& other) {
    return std::ranges::any_of(other.sent,
                               [&](int v) { return element(program.values, v).producer == block; });
  });
}

bool waits_for_exchange(const StepProgram& program, const Operation& operation) {
  if (operation.lane != Lane::compute || operation.block < 0) return false;
  if (has_experts(program, operation.block)) return operation.kind != OpKind::backward_weight;
  if (operation.kind == OpKind::backward || operation.kind == OpKind::backward_input)
    return makes_sent(program, operation.block);
  return takes_combined(program, element(program.blocks, operation.block));
}

/// The places in [begin, end] where a piece ends.
std::vector<int> cuts_of(const StepProgram& program, int begin, int end) {
  std::vector<int> cuts;
  for (int i = begin + 1; i < end; ++i)
    if (waits_for_exchange(program, element(program.operations, i))) cuts.push_back(i);
  cuts.push_back(end);
  return cuts;
}

/// The indices of both lists, their pieces in turn.
std::vector<int> order_of_turns(const StepProgram& program, int begin, int middle) {
  const std::vector<int> first = cuts_of(program, begin, middle);
  const std::vector<int> second = cuts_of(program, middle, static_cast<int>(program.operations.size()));
  std::vector<int> order;
  std::vector<int>
      sends;  // of the second list: where both go to one neighbour, it expects them in this order
  int of_first = begin;
  int of_second = middle;
  for (std::size_t piece = 0; piece < std::max(first.size(), second.size()); ++piece) {
    if (piece < first.size())
      for (; of_first < first[piece]; ++of_first) order.push_back(of_first);
    if (piece < second.size())
      for (; of_second < second[piece]; ++of_second) {
        const bool sends_message = element(program.operations, of_second).peer >= 0;
        (sends_message ? sends : order).push_back(of_second);
      }
  }
  std::ranges::copy(sends, std::back_inserter(order));
  return order;
}

}  // namespace

std::size_t turn_partner(const std::vector<Action>& actions, std::size_t k, bool in_pipeline) {
  std::size_t other = k + 1;
  while (in_pipeline && other < actions.size() && actions[other].kind == ActionKind::backward_weight) ++other;
  if (other >= actions.size() || actions[k].micro_batch == actions[other].micro_batch) return k;
  const auto is_forward = [&](std::size_t i) { return actions[i].kind == ActionKind::forward; };
  const auto is_backward = [&](std::size_t i) {
    return actions[i].kind == ActionKind::backward || actions[i].kind == ActionKind::backward_input;
  };
  const bool fit = in_pipeline
                       ? is_backward(k) && is_forward(other)
                       : (is_forward(k) && is_forward(other)) || (is_backward(k) && is_backward(other));
  return fit ? other : k;
}

std::vector<int> alternate_exchanges(StepProgram& program, int begin, int middle) {
  const std::vector<int> order = order_of_turns(program, begin, middle);
  std::vector<int> places(order.size());
  std::vector<Operation> moved;
  for (const int i : order) {
    element(places, i - begin) = begin + static_cast<int>(moved.size());
    moved.push_back(std::move(element(program.operations, i)));
  }
  for (Operation& operation : moved)
    for (int& needed : operation.needs)
      if (needed >= begin) needed = element(places, needed - begin);
  std::ranges::move(moved, program.operations.begin() + begin);
  return places;
}

}  // namespace stepforge
