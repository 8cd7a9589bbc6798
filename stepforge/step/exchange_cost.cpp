// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/exchange_cost.h"

#include <iterator>

#include "stepforge/comm/collective.h"

namespace stepforge {

namespace {

constexpr int64_t kCountBytes = 8;  // int64: the number of rows of an expert, or of tokens of a rank

/// What a block's dispatch sends, in bytes.
struct Sent {
  Sent(const StepProgram& program, const ProgramBlock& block)
      : tokens(element(program.values, block.sent.at(0)).bytes()),
        weights(element(program.values, block.sent.at(1)).bytes()),
        experts(element(program.values, block.sent.at(2)).bytes()),
        chosen(element(program.values, block.sent.at(1)).width) {}

  int64_t tokens;
  int64_t weights;
  int64_t experts;
  int64_t chosen;  ///< experts of a token
};

int64_t ranks_of_experts(const StepProgram& program) {
  const int group = find_group(program.groups, kExpertGroup);
  return group < 0 ? 1 : std::ssize(element(program.groups, group).ranks);
}

/// A row for each part of each expert of a token, with its weight beside it; first, the number of rows for each expert.
ExchangeCost of_all_to_all(const ProgramBlock& block, const Sent& sent, OpKind kind) {
  const int64_t rows = sent.tokens * sent.chosen * block.parts;
  const int64_t weights = sent.weights * block.parts;
  ExchangeCost cost{.bytes = rows, .workspace = rows};  // in the order of the experts
  if (kind == OpKind::dispatch) cost.bytes += weights + block.experts * block.parts * kCountBytes;
  if (kind == OpKind::dispatch_gradient) cost.bytes += weights;
  return cost;
}

/// The tokens of all ranks, with their weights and experts beside them; first, the number of tokens of each rank.
ExchangeCost of_all_gather(const Sent& sent, OpKind kind, int64_t ranks) {
  ExchangeCost cost{.bytes = ranks * sent.tokens, .workspace = ranks * sent.tokens};
  if (kind == OpKind::dispatch) cost.bytes += ranks * (sent.weights + sent.experts + kCountBytes);
  if (kind == OpKind::dispatch_gradient) cost.bytes += ranks * sent.weights;
  return cost;
}

ExchangeCost of_method(const StepProgram& program, const ProgramBlock& block, OpKind kind) {
  const Sent sent(program, block);
  switch (block.method) {
    case DispatchMethod::all_to_all:
      return of_all_to_all(block, sent, kind);
    case DispatchMethod::all_gather:
      return of_all_gather(sent, kind, ranks_of_experts(program));
  }
  return {};
}

}  // namespace

ExchangeCost exchange_cost(const StepProgram& program, const Operation& operation) {
  const ProgramBlock& block = element(program.blocks, operation.block);
  ExchangeCost cost = of_method(program, block, operation.kind);
  if (operation.kind != OpKind::dispatch_gradient) return cost;
  for (const int value : block.sent)  // the summand is made in memory of its own
    if (find_buffer(program, operation.reads, BufferKind::bundle_gradient, value) >= 0)
      cost.workspace += element(program.values, value).bytes();
  return cost;
}

int64_t routes_bytes(const StepProgram& program, const ProgramBlock& block) {
  const int64_t slots = element(program.values, block.sent.at(2)).bytes();
  switch (block.method) {
    case DispatchMethod::all_to_all:
      return 2 * slots * block.parts;  // the slot of each row, and the row of each slot
    case DispatchMethod::all_gather:   // the row of each slot of all ranks, and the slot of each own row
      return ranks_of_experts(program) * slots + element(program.values, block.inputs.at(2)).bytes();
  }
  return 0;
}

std::string_view collective_of_exchange(const StepProgram& program, const Operation& operation) {
  if (!has_trait(operation.kind, kDispatches)) return {};
  if (operation.block < 0 || operation.block >= std::ssize(program.blocks)) return {};
  const bool to_experts = operation.kind == OpKind::dispatch || operation.kind == OpKind::combine_gradient;
  switch (element(program.blocks, operation.block).method) {
    case DispatchMethod::all_to_all:
      return collective_name(CollectiveKind::all_to_all);
    case DispatchMethod::all_gather:
      return collective_name(to_experts ? CollectiveKind::all_gather : CollectiveKind::reduce_scatter);
  }
  return {};
}

}  // namespace stepforge
