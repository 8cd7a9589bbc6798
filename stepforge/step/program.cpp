#include "stepforge/step/program.h"

#include "stepforge/base/format.h"

namespace stepforge {

std::string_view op_name(OpKind kind) {
  switch (kind) {
    case OpKind::count_labels:
      return "count_labels";
    case OpKind::load_batch:
      return "load_batch";
    case OpKind::gather_start:
      return "gather_start";
    case OpKind::gather_wait:
      return "gather_wait";
    case OpKind::release:
      return "release";
    case OpKind::forward:
      return "forward";
    case OpKind::recompute:
      return "recompute";
    case OpKind::loss:
      return "loss";
    case OpKind::loss_forward_backward:
      return "loss_forward_backward";
    case OpKind::logits:
      return "logits";
    case OpKind::backward:
      return "backward";
    case OpKind::backward_input:
      return "backward_input";
    case OpKind::backward_weight:
      return "backward_weight";
    case OpKind::start_gradient:
      return "start_gradient";
    case OpKind::stash_gradient:
      return "stash_gradient";
    case OpKind::add_gradient:
      return "add_gradient";
    case OpKind::reduce_start:
      return "reduce_start";
    case OpKind::reduce_wait:
      return "reduce_wait";
    case OpKind::all_reduce_start:
      return "all_reduce_start";
    case OpKind::all_reduce_wait:
      return "all_reduce_wait";
    case OpKind::tie_reduce:
      return "tie_reduce";
    case OpKind::reduce_loss:
      return "reduce_loss";
    case OpKind::send:
      return "send";
    case OpKind::receive:
      return "receive";
    case OpKind::gradient_norm:
      return "gradient_norm";
    case OpKind::check_finite:
      return "check_finite";
    case OpKind::update:
      return "update";
    case OpKind::offload_start:
      return "offload_start";
    case OpKind::offload_wait:
      return "offload_wait";
    case OpKind::reload_start:
      return "reload_start";
    case OpKind::reload_wait:
      return "reload_wait";
  }
  return "?";
}

std::string_view lane_name(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::gather:
      return "gather";
    case Lane::reduce:
      return "reduce";
    case Lane::peer:
      return "peer";
    case Lane::copy:
      return "copy";
  }
  return "?";
}

Lane lane_of(OpKind kind) {
  switch (kind) {
    case OpKind::gather_start:
      return Lane::gather;
    case OpKind::reduce_start:
    case OpKind::all_reduce_start:
      return Lane::reduce;
    case OpKind::send:
    case OpKind::receive:
      return Lane::peer;
    case OpKind::offload_start:
    case OpKind::reload_start:
      return Lane::copy;
    default:
      return Lane::compute;
  }
}

std::string_view buffer_kind_name(BufferKind kind) {
  switch (kind) {
    case BufferKind::weights:
      return "weights";
    case BufferKind::gradients:
      return "gradients";
    case BufferKind::optimizer:
      return "optimizer";
    case BufferKind::gather_slot:
      return "gather_slot";
    case BufferKind::batch:
      return "batch";
    case BufferKind::bundle:
      return "bundle";
    case BufferKind::graph:
      return "graph";
    case BufferKind::bundle_gradient:
      return "bundle_gradient";
    case BufferKind::gradient_level:
      return "gradient_level";
    case BufferKind::whole_gradient:
      return "whole_gradient";
    case BufferKind::kv_cache:
      return "kv_cache";
    case BufferKind::host:
      return "host";
  }
  return "?";
}

std::string_view program_kind_name(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::train:
      return "train";
    case ProgramKind::evaluate:
      return "evaluate";
    case ProgramKind::generate:
      return "generate";
  }
  return "?";
}

int find_buffer(const StepProgram& program, const std::vector<int>& buffers, BufferKind kind) {
  for (const int buffer : buffers)
    if (program.buffers[static_cast<std::size_t>(buffer)].kind == kind) return buffer;
  return -1;
}

std::vector<BufferKind> kinds_of(const StateParts& parts) {
  std::vector<BufferKind> kinds;
  if (parts.weights) kinds.push_back(BufferKind::weights);
  if (parts.gradients) kinds.push_back(BufferKind::gradients);
  if (parts.optimizer) kinds.push_back(BufferKind::optimizer);
  return kinds;
}

namespace {

template <typename Named>
std::string name_at(const std::vector<Named>& items, int index) {
  const auto position = static_cast<std::size_t>(index);
  return index >= 0 && position < items.size() ? items[position].name : format("#{}", index);
}

}  // namespace

std::string operation_text(const StepProgram& program, const Operation& operation) {
  std::string text(op_name(operation.kind));
  if (operation.block >= 0) text += " " + name_at(program.blocks, operation.block);
  if (operation.unit >= 0) text += " " + name_at(program.units, operation.unit);
  if (operation.micro_batch >= 0) text += format(" m{}", operation.micro_batch);
  if (operation.level >= 0) text += format(" level {}", operation.level);
  if (operation.peer >= 0) {
    text += format(" {} rank {} tag {}", operation.kind == OpKind::send ? "to" : "from", operation.peer,
                   operation.tag);
  }
  if (operation.group >= 0) text += " over " + name_at(program.groups, operation.group);
  for (const BufferKind kind : kinds_of(operation.parts)) text += format(" {}", buffer_kind_name(kind));
  if (operation.keep_graph) text += " graph";
  if (operation.accumulate) text += " accumulate";
  return text;
}

}  // namespace stepforge
