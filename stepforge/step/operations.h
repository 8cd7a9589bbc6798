// SPDX-License-Identifier: Apache-2.0
// The kinds of operations in a step program: one row of one table for each. Names, lanes, the structure check
// and the buffer pass read the rows; a new kind of operation is a new row and its execution.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace stepforge {

enum class OpKind : uint8_t {
  count_labels,           ///< counts the labels of the batch, and requests to stop, over the group
  load_batch,             ///< takes micro-batch m from the loader
  gather_start,           ///< starts to gather unit u, in the gather dtype, into its slot
  gather_wait,            ///< from here on unit u may be used
  release,                ///< frees the slot of unit u
  forward,                ///< block b on micro-batch m; keeps its graph if keep_graph
  recompute,              ///< block b on m again, now with its graph
  loss,                   ///< head block in evaluation: only the loss
  loss_forward_backward,  ///< head block in training: the loss, and the gradients of the head and its input
  logits,                 ///< head block in generation: logits of the last position of each document
  backward,               ///< block b on m: gradients of inputs and weights
  backward_input,         ///< gradients of inputs only; the products for the gradients of weights are queued
  backward_weight,        ///< the queued gradients of weights
  start_gradient,         ///< empties the gradient of unit u: the next write overwrites it. If the unit is
                          ///< sharded or offloaded, allocates a gradient of the whole unit
  stash_gradient,         ///< ordered mode: moves the gradient of unit u to level l of the summation tree
  add_gradient,           ///< ordered mode: adds level l to the gradient of unit u and frees the level
  reduce_start,           ///< starts to sum the whole gradient of unit u over the shard group into the shard
  reduce_wait,            ///< the sum is complete; the whole gradient is no longer needed
  all_reduce_start,       ///< starts to sum the gradient of unit u over the replicas
  all_reduce_wait,        ///< the sum is complete
  tie_reduce,             ///< sums the gradient of a tied unit over the stages that hold a copy
  share_loss,             ///< gives the losses of the last stage to all stages
  share_logits,           ///< gives the logits of the last stage to all stages
  reduce_loss,            ///< collects the losses of all ranks of the group
  send,                   ///< sends the output of block b to `peer`, the next stage
  receive,                ///< receives the input of block b from `peer`, the stage before
  send_gradient,          ///< sends the gradient of the input of block b to the stage before
  receive_gradient,       ///< receives the gradient of the output of block b from the next stage
  gradient_norm,          ///< norm of the gradients of all trainable units over the shard group
  join_norm,              ///< joins the norms of the parts of divided tensors
  join_stage_norms,       ///< joins the norms of the units of all stages
  check_finite,           ///< stops or skips the step if the loss or the norm is not finite
  update,                 ///< updates unit u by the optimizer
  offload_start,          ///< starts to copy parts of the state of an offloaded unit to the host
  offload_wait,           ///< the copy is complete
  reload_start,           ///< starts to copy parts of the state of an offloaded unit to the device
  reload_wait,            ///< the copy is complete
};

/// Operations of one lane run in list order. Lanes run concurrently and are ordered only by Operation::needs.
/// Collectives of one group on several lanes may overlap: each pair of lane and group has its own
/// communicator. `peer`: messages inside blocks. The last four carry the messages of a pipeline: one lane for each
/// neighbour and direction; with two ranks, both neighbours are the next one.
enum class Lane : uint8_t {
  compute,
  gather,
  reduce,
  peer,
  copy,
  send_next,
  receive_next,
  send_previous,
  receive_previous
};

inline constexpr std::array<std::string_view, 9> kLaneNames = {
    "compute",      "gather",        "reduce",          "peer", "copy", "send_next",
    "receive_next", "send_previous", "receive_previous"};
inline constexpr std::size_t kLanes = kLaneNames.size();

/// Whether the lane carries messages between stages of a pipeline.
constexpr bool is_pipeline_lane(Lane lane) {
  return lane >= Lane::send_next;
}

enum class BufferKind : uint8_t {
  weights,
  gradients,  ///< of this rank's shard
  optimizer,
  gather_slot,
  batch,
  bundle,           ///< the output of a block
  graph,            ///< what autograd saved in a forward
  bundle_gradient,  ///< the gradient of a bundle
  weight_inputs,    ///< the part of what autograd saved that backward_weight needs
  weight_queue,     ///< what backward_input computes for backward_weight
  gradient_level,
  whole_gradient,  ///< of a unit that is sharded or offloaded, until it is reduced
  kv_cache,
  host  ///< the state of an offloaded unit, in host memory
};

inline constexpr std::array<std::string_view, 14> kBufferKindNames = {
    "weights",        "gradients",      "optimizer",       "gather_slot",   "batch",
    "bundle",         "graph",          "bundle_gradient", "weight_inputs", "weight_queue",
    "gradient_level", "whole_gradient", "kv_cache",        "host"};

enum class ProgramKind : uint8_t { train, evaluate, generate };

inline constexpr std::array<std::string_view, 3> kProgramKindNames = {"train", "evaluate", "generate"};

/// What a buffer belongs to, for an operation on block b, unit u, micro-batch m, level l.
enum class BufferOwner : uint8_t {
  micro_batch,  ///< m
  block,        ///< b on m
  input,        ///< the input value of b on m
  output,       ///< the output value of b on m
  unit,         ///< u
  unit_level    ///< u at level l
};

struct BufferUse {
  BufferKind kind = BufferKind::weights;
  BufferOwner owner = BufferOwner::unit;
};

/// A list of at most five.
struct BufferUses {
  std::array<BufferUse, 5> items = {};
  std::size_t count = 0;

  constexpr BufferUses() = default;
  constexpr BufferUses(std::initializer_list<BufferUse> uses) {
    for (const BufferUse& use : uses) items.at(count++) = use;
  }
  constexpr const BufferUse* begin() const { return items.data(); }
  constexpr const BufferUse* end() const { return items.data() + count; }
};

/// Properties of a kind of operation: the fields that it must have, and how it takes part in the step.
enum OpTrait : uint16_t {
  kHasBlock = 1 << 0,
  kHasMicroBatch = 1 << 1,
  kHasUnit = 1 << 2,
  kHasLevel = 1 << 3,
  kHasPeer = 1 << 4,
  kHasGroup = 1 << 5,
  kOverShards = 1 << 6,     ///< its group is the shard group of its unit, or none if the unit has none
  kOverReplicas = 1 << 7,   ///< its group is the replica group of its unit
  kUsesUnits = 1 << 8,      ///< computes with the units of its block
  kContributes = 1 << 9,    ///< adds to the gradients of the trainable units of its block, and completes them
  kRunsBackward = 1 << 10,  ///< belongs to the backward half of a step
  kTrains = 1 << 11,        ///< only in programs that train
  kNeverTrains = 1 << 12,   ///< only in programs that do not train
};

struct OpInfo {
  OpKind kind;
  std::string_view name;
  Lane lane;
  unsigned traits;            ///< OpTrait
  BufferUses reads = {};      ///< if they are live
  BufferUses allocates = {};  ///< if this program needs them (see build_step)
};

namespace op_table {

inline constexpr BufferUse kBatch{BufferKind::batch, BufferOwner::micro_batch};
inline constexpr BufferUse kInput{BufferKind::bundle, BufferOwner::input};
inline constexpr BufferUse kOutput{BufferKind::bundle, BufferOwner::output};
inline constexpr BufferUse kGraph{BufferKind::graph, BufferOwner::block};
inline constexpr BufferUse kWeightInputs{BufferKind::weight_inputs, BufferOwner::block};
inline constexpr BufferUse kQueue{BufferKind::weight_queue, BufferOwner::block};
inline constexpr BufferUse kInputGradient{BufferKind::bundle_gradient, BufferOwner::input};
inline constexpr BufferUse kOutputGradient{BufferKind::bundle_gradient, BufferOwner::output};
inline constexpr BufferUse kSlot{BufferKind::gather_slot, BufferOwner::unit};
inline constexpr BufferUse kWhole{BufferKind::whole_gradient, BufferOwner::unit};
inline constexpr BufferUse kLevel{BufferKind::gradient_level, BufferOwner::unit_level};
inline constexpr BufferUse kWeights{BufferKind::weights, BufferOwner::unit};
inline constexpr BufferUse kGradients{BufferKind::gradients, BufferOwner::unit};
inline constexpr BufferUse kOptimizer{BufferKind::optimizer, BufferOwner::unit};

inline constexpr unsigned kBlock = kHasBlock | kHasMicroBatch;
inline constexpr unsigned kComputes = kBlock | kUsesUnits;
inline constexpr unsigned kUnit = kHasUnit;
inline constexpr unsigned kGradient = kHasUnit | kTrains;
inline constexpr unsigned kMessage = kBlock | kHasPeer | kHasGroup;

using enum OpKind;
using enum Lane;

// clang-format off
inline constexpr std::array kRows = {
    OpInfo{count_labels, "count_labels", compute, 0},
    OpInfo{load_batch, "load_batch", compute, kHasMicroBatch, {}, {kBatch}},
    OpInfo{gather_start, "gather_start", gather, kUnit | kOverShards, {kWeights}, {kSlot}},
    OpInfo{gather_wait, "gather_wait", compute, kUnit, {kSlot}},
    OpInfo{release, "release", compute, kUnit, {kSlot}},
    OpInfo{forward, "forward", compute, kComputes, {kBatch, kInput}, {kOutput, kGraph, kWeightInputs}},
    OpInfo{recompute, "recompute", compute, kComputes | kRunsBackward | kTrains, {kBatch, kInput}, {kGraph, kWeightInputs}},
    OpInfo{loss, "loss", compute, kComputes | kNeverTrains, {kBatch, kInput}},
    OpInfo{loss_forward_backward, "loss_forward_backward", compute,
           kComputes | kContributes | kRunsBackward | kTrains, {kBatch, kInput}, {kInputGradient}},
    OpInfo{logits, "logits", compute, kComputes | kNeverTrains, {kBatch, kInput}},
    OpInfo{backward, "backward", compute, kComputes | kContributes | kRunsBackward | kTrains,
           {kBatch, kInput, kGraph, kWeightInputs, kOutputGradient}, {kInputGradient}},
    OpInfo{backward_input, "backward_input", compute, kComputes | kRunsBackward | kTrains,
           {kBatch, kInput, kGraph, kOutputGradient}, {kInputGradient, kQueue}},
    // It multiplies activations by gradients, so it does not use the weights of its units.
    OpInfo{backward_weight, "backward_weight", compute, kBlock | kContributes | kTrains,
           {kWeightInputs, kQueue}},
    OpInfo{start_gradient, "start_gradient", compute, kGradient, {}, {kWhole}},
    OpInfo{stash_gradient, "stash_gradient", compute, kGradient | kHasLevel, {kWhole}, {kLevel}},
    OpInfo{add_gradient, "add_gradient", compute, kGradient | kHasLevel, {kLevel}},
    OpInfo{reduce_start, "reduce_start", reduce, kGradient | kOverShards, {kWhole, kGradients}, {kGradients}},
    OpInfo{reduce_wait, "reduce_wait", compute, kGradient, {kWhole}},
    OpInfo{all_reduce_start, "all_reduce_start", reduce, kGradient | kOverReplicas | kHasGroup, {kGradients}},
    OpInfo{all_reduce_wait, "all_reduce_wait", compute, kGradient},
    OpInfo{tie_reduce, "tie_reduce", compute, kGradient | kHasGroup},
    OpInfo{share_loss, "share_loss", compute, kHasGroup},
    OpInfo{share_logits, "share_logits", compute, kHasGroup | kNeverTrains},
    OpInfo{reduce_loss, "reduce_loss", compute, 0},
    OpInfo{send, "send", send_next, kMessage, {kOutput}},
    OpInfo{receive, "receive", receive_previous, kMessage, {kBatch}, {kInput}},
    OpInfo{send_gradient, "send_gradient", send_previous, kMessage | kTrains, {kInputGradient}},
    OpInfo{receive_gradient, "receive_gradient", receive_next, kMessage | kTrains, {}, {kOutputGradient}},
    OpInfo{gradient_norm, "gradient_norm", compute, kTrains},
    OpInfo{join_norm, "join_norm", compute, kHasGroup | kTrains},
    OpInfo{join_stage_norms, "join_stage_norms", compute, kHasGroup | kTrains},
    OpInfo{check_finite, "check_finite", compute, 0},
    OpInfo{update, "update", compute, kGradient, {kWeights, kGradients, kOptimizer}},
    OpInfo{offload_start, "offload_start", copy, kUnit, {kWeights, kGradients, kOptimizer}},
    OpInfo{offload_wait, "offload_wait", compute, kUnit},
    OpInfo{reload_start, "reload_start", copy, kUnit, {}, {kWeights, kGradients, kOptimizer}},
    OpInfo{reload_wait, "reload_wait", compute, kUnit},
};
// clang-format on

constexpr bool rows_follow_the_enumeration() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].kind) != i) return false;
  return kRows.size() == static_cast<std::size_t>(reload_wait) + 1;
}
static_assert(rows_follow_the_enumeration());

}  // namespace op_table

/// The row of a kind.
constexpr const OpInfo& op_info(OpKind kind) {
  return op_table::kRows.at(static_cast<std::size_t>(kind));
}

/// Whether operations of this kind have at least one of these OpTraits.
constexpr bool has_trait(OpKind kind, unsigned traits) {
  return (op_info(kind).traits & traits) != 0;
}

constexpr std::string_view op_name(OpKind kind) {
  return op_info(kind).name;
}
/// Messages have another lane if the peer is the other neighbour (pipeline_lane() of program.h).
constexpr Lane lane_of(OpKind kind) {
  return op_info(kind).lane;
}
constexpr bool sends_message(OpKind kind) {
  return kind == OpKind::send || kind == OpKind::send_gradient;
}
constexpr bool receives_message(OpKind kind) {
  return kind == OpKind::receive || kind == OpKind::receive_gradient;
}
constexpr std::string_view lane_name(Lane lane) {
  return kLaneNames.at(static_cast<std::size_t>(lane));
}
constexpr std::string_view buffer_kind_name(BufferKind kind) {
  return kBufferKindNames.at(static_cast<std::size_t>(kind));
}
constexpr std::string_view program_kind_name(ProgramKind kind) {
  return kProgramKindNames.at(static_cast<std::size_t>(kind));
}

}  // namespace stepforge
