// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/program.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/exchange_cost.h"

namespace stepforge {

Operation make_operation(OpKind kind, int unit, int group) {
  Operation operation;
  operation.kind = kind;
  operation.lane = lane_of(kind);
  operation.unit = unit;
  operation.group = group;
  return operation;
}

Lane pipeline_lane(int self, int peer, int size, bool sends) {
  if (peer == (self + 1) % size) return sends ? Lane::send_next : Lane::receive_next;
  if (self == (peer + 1) % size) return sends ? Lane::send_previous : Lane::receive_previous;
  throw UsageError(format(
      "ranks {} and {} of a pipeline of {} have adjacent stages, but are not neighbours; place the stages so "
      "that neighbouring stages are on the same or on neighbouring ranks",
      self, peer, size));
}

int find_buffer(const StepProgram& program, const std::vector<int>& buffers, BufferKind kind, int value) {
  for (const int index : buffers) {
    const Buffer& buffer = element(program.buffers, index);
    if (buffer.kind == kind && (value < 0 || buffer.value == value)) return index;
  }
  return -1;
}

std::vector<BufferKind> kinds_of(const StateParts& parts) {
  std::vector<BufferKind> kinds;
  if (parts.weights) kinds.push_back(BufferKind::weights);
  if (parts.gradients) kinds.push_back(BufferKind::gradients);
  if (parts.optimizer) kinds.push_back(BufferKind::optimizer);
  return kinds;
}

bool reads_weights(const StepProgram& program, const Operation& operation) {
  if (!has_trait(operation.kind, kUsesUnits)) return false;
  const bool is_backward = operation.kind == OpKind::backward || operation.kind == OpKind::backward_input;
  return !is_backward || element(program.blocks, operation.block).weights_in_backward;
}

std::vector<GroupExchange> collectives_of(const Operation& operation) {
  std::vector<GroupExchange> found;
  if (operation.group >= 0 && !has_trait(operation.kind, kHasPeer))
    found.push_back({operation.group, operation.bytes});
  for (const GroupExchange& exchange : operation.exchanges)
    if (exchange.group >= 0) found.push_back(exchange);
  return found;
}

int64_t total_bytes(const Operation& operation) {
  int64_t bytes = operation.bytes;
  for (const GroupExchange& exchange : operation.exchanges) bytes += exchange.bytes;
  return bytes;
}

namespace {

template <typename Named>
std::string name_at(const std::vector<Named>& items, int index) {
  return index >= 0 && index < std::ssize(items) ? element(items, index).name : format("#{}", index);
}

}  // namespace

std::string operation_text(const StepProgram& program, const Operation& operation) {
  std::string text(op_name(operation.kind));
  if (operation.block >= 0) text += " " + name_at(program.blocks, operation.block);
  if (operation.unit >= 0) text += " " + name_at(program.units, operation.unit);
  if (operation.micro_batch >= 0) text += format(" m{}", operation.micro_batch);
  if (operation.level >= 0) text += format(" level {}", operation.level);
  if (operation.peer >= 0) {
    text += format(" {} rank {} tag {}", sends_message(operation.kind) ? "to" : "from", operation.peer,
                   operation.tag);
  } else if (operation.group >= 0)
    text += " over " + name_at(program.groups, operation.group);
  if (const std::string_view name = collective_of_exchange(program, operation); !name.empty())
    text += format(" by {}", name);
  const char* word = " over ";
  for (const GroupExchange& exchange : operation.exchanges) {
    if (exchange.group < 0) continue;
    text += word + name_at(program.groups, exchange.group);
    word = " and ";
  }
  for (const BufferKind kind : kinds_of(operation.parts)) text += format(" {}", buffer_kind_name(kind));
  if (operation.keep_graph) text += " graph";
  if (operation.accumulate) text += " accumulate";
  return text;
}

}  // namespace stepforge
