// SPDX-License-Identifier: Apache-2.0
// The kinds of operations in a step program: one row of one table for each, with its lane, fields and effects on
// resources. The passes and the checker read the rows; a new kind of operation is a new row and its execution.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stepforge/step/resources.h"

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
  tie_leaf,               ///< ordered mode: the same for one micro-batch
  share_loss,             ///< gives the losses of the last stage to all stages
  share_logits,           ///< gives the logits of the last stage to all stages
  reduce_loss,            ///< collects the losses of all ranks of the group
  send,                   ///< sends the output of block b to `peer`, the next stage
  receive,                ///< receives the input of block b from `peer`, the stage before
  send_gradient,          ///< sends the gradient of the input of block b to the stage before
  receive_gradient,       ///< receives the gradient of the output of block b from the next stage
  dispatch,           ///< brings rows of tokens to the ranks that have their experts: the inputs of block b
  combine,            ///< returns the outputs of block b, results of rows, and adds those of each token
  combine_gradient,   ///< brings the gradients of results to where the rows went
  dispatch_gradient,  ///< returns the gradients of the inputs of block b to the tokens
  gradient_norm,      ///< norm of the gradients of all trainable units over the shard group
  join_norm,          ///< joins the norms of the parts of divided tensors
  join_stage_norms,   ///< joins the norms of the units of all stages
  check_finite,       ///< stops or skips the step if the loss or the norm is not finite
  update,             ///< updates unit u by the optimizer
  update_state,       ///< changes unit u, state of a block, by the tally of the step, summed over the group
  offload_start,      ///< starts to copy parts of the state of an offloaded unit to the host
  offload_wait,       ///< the copy is complete
  reload_start,       ///< starts to copy parts of the state of an offloaded unit to the device
  reload_wait,        ///< the copy is complete
};

/// Operations of one lane run in list order. Lanes run concurrently and are ordered only by Operation::needs.
/// Collectives of one group on several lanes may overlap: each pair of lane and group has its own
/// communicator. `peer`: messages inside blocks. `exchange`: rows on their way to experts and back. The last four carry
/// the messages of a pipeline: one lane for each neighbour and direction; with two ranks, both neighbours are the next one.
enum class Lane : uint8_t {
  compute,
  gather,
  reduce,
  peer,
  exchange,
  copy,
  send_next,
  receive_next,
  send_previous,
  receive_previous
};

inline constexpr std::array<std::string_view, 10> kLaneNames = {
    "compute", "gather",    "reduce",       "peer",          "exchange",
    "copy",    "send_next", "receive_next", "send_previous", "receive_previous"};
inline constexpr std::size_t kLanes = kLaneNames.size();

/// Whether the lane carries messages between stages of a pipeline.
constexpr bool is_pipeline_lane(Lane lane) {
  return lane >= Lane::send_next;
}

enum class ProgramKind : uint8_t { train, evaluate, generate };

inline constexpr std::array<std::string_view, 3> kProgramKindNames = {"train", "evaluate", "generate"};

/// Properties of a kind of operation: the fields that it must have, and how it takes part in the step.
enum OpTrait : uint16_t {
  kHasBlock = 1 << 0,
  kHasMicroBatch = 1 << 1,
  kHasUnit = 1 << 2,
  kHasLevel = 1 << 3,
  kHasPeer = 1 << 4,
  kUsesUnits = 1 << 5,     ///< computes with the units of its block
  kContributes = 1 << 6,   ///< adds to the gradients of the trainable units of its block
  kCompletes = 1 << 7,     ///< uses gradients to which all blocks and micro-batches must have contributed
  kRunsBackward = 1 << 8,  ///< belongs to the backward half of a step
  kRunsHead = 1 << 9,  ///< its block is the head; other operations on a block are on blocks with an output
  kTrains = 1 << 10,   ///< only in programs that train
  kNeverTrains = 1 << 11,  ///< only in programs that do not train
  kGenerates = 1 << 12,    ///< only in programs that generate
  kNeverGenerates = 1 << 13,
  kDispatches = 1 << 14,  ///< rows of its block pass between the ranks of the experts
};

/// Over which group an operation must run; -1 if the program has no such group.
enum class Over : uint8_t {
  none,
  any,
  shards,      ///< of its unit
  replicas,    ///< of its unit
  copies,      ///< of its tied unit
  all_shards,  ///< of all trainable units
  labels,
  stages,
  loss,
  same_layers,
  tensor,
  experts
};

struct OpInfo {
  OpKind kind;
  std::string_view name;
  Lane lane;
  unsigned traits;  ///< OpTrait
  Over over = Over::none;
  Effects effects = {};
};

namespace op_table {

inline constexpr unsigned kBlock = kHasBlock | kHasMicroBatch;
inline constexpr unsigned kComputes = kBlock | kUsesUnits;
inline constexpr unsigned kBackward = kComputes | kRunsBackward | kTrains;
inline constexpr unsigned kUnit = kHasUnit;
inline constexpr unsigned kGradient = kHasUnit | kTrains;
inline constexpr unsigned kMessage = kBlock | kHasPeer;
inline constexpr unsigned kExchange = kBlock | kDispatches;

using enum OpKind;
using enum Lane;
using R = Resource;
using A = Access;
using S = Selector;

inline constexpr Effects kReadsInput = {{A::use, R::batch}, {A::use, R::value, S::inputs}};
inline constexpr Effects kReadsKept = {{A::use, R::value, S::kept}};
/// Weights are as they were at the beginning of the step.
inline constexpr Effects kReadsUnits = {{A::use, R::gathered, S::block_units, When::reads_weights},
                                        {A::bar, R::updated, S::block_units}};
inline constexpr Effects kMakesLoss = Effects{{A::make, R::run},
                                              {A::use, R::labels, S::own, When::has_label_group},
                                              {A::bar, R::shared_loss},
                                              {A::bar, R::reduced_loss},
                                              {A::change, R::losses}};
inline constexpr Effects kAddsGradients = {
    {A::bar, R::all_reduced, S::trained}, {A::bar, R::norm}, {A::change, R::gradient, S::trained}};
/// Before the sums over ranks, and before the norm.
inline constexpr Effects kNotSummed = {{A::bar, R::all_reduced}, {A::bar, R::norm}};
inline constexpr Effects kUsesSum = {{A::use, R::gradient, S::own, When::in_place},
                                     {A::use, R::reduced, S::own, When::reduces}};

// clang-format off
inline constexpr std::array kRows = {
    OpInfo{count_labels, "count_labels", compute, kNeverGenerates, Over::labels, {{A::make, R::labels}}},
    OpInfo{load_batch, "load_batch", compute, kHasMicroBatch, Over::none, {{A::make, R::batch}}},
    OpInfo{gather_start, "gather_start", gather, kUnit, Over::shards, {{A::take, R::weights}, {A::begin, R::gathered}}},
    OpInfo{gather_wait, "gather_wait", compute, kUnit, Over::none, {{A::finish, R::gathered}}},
    OpInfo{release, "release", compute, kUnit, Over::none, {{A::end, R::gathered}}},
    OpInfo{forward, "forward", compute, kComputes, Over::none,
           kReadsInput + kReadsUnits + Effects{{A::make, R::run}, {A::make, R::value, S::outputs},
                       {A::make, R::graph, S::own, When::keeps_graph},
                       {A::make, R::weight_inputs, S::own, When::keeps_graph}}},
    OpInfo{recompute, "recompute", compute, kBackward, Over::none,
           kReadsInput + kReadsUnits + Effects{{A::use, R::run}, {A::make, R::graph}, {A::make, R::weight_inputs}}},
    OpInfo{loss, "loss", compute, kComputes | kRunsHead | kNeverTrains | kNeverGenerates, Over::none,
           kReadsInput + kReadsUnits + kMakesLoss},
    OpInfo{loss_forward_backward, "loss_forward_backward", compute, kBackward | kRunsHead | kContributes, Over::none,
           kReadsInput + kReadsUnits + kMakesLoss + kAddsGradients + Effects{{A::add, R::value_gradient, S::inputs}}},
    OpInfo{logits, "logits", compute, kComputes | kRunsHead | kGenerates, Over::none,
           kReadsInput + kReadsUnits + Effects{{A::make, R::run}, {A::bar, R::shared_loss}, {A::change, R::losses}}},
    OpInfo{backward, "backward", compute, kBackward | kContributes, Over::none,
           kReadsInput + kReadsKept + kReadsUnits + kAddsGradients +
               Effects{{A::end, R::graph}, {A::end, R::weight_inputs}, {A::end, R::value_gradient, S::outputs},
                       {A::add, R::value_gradient, S::inputs}}},
    OpInfo{backward_input, "backward_input", compute, kBackward, Over::none,
           kReadsInput + kReadsKept + kReadsUnits +
               Effects{{A::end, R::graph}, {A::end, R::value_gradient, S::outputs},
                       {A::add, R::value_gradient, S::inputs}, {A::make, R::weight_queue}}},
    // It multiplies activations by gradients, so it does not read the weights of its units.
    OpInfo{backward_weight, "backward_weight", compute, kBlock | kContributes | kTrains, Over::none,
           Effects{{A::end, R::weight_queue}, {A::end, R::weight_inputs}, {A::bar, R::updated, S::block_units}} +
               kAddsGradients},
    OpInfo{start_gradient, "start_gradient", compute, kGradient, Over::none, kNotSummed + Effects{{A::make, R::gradient}}},
    OpInfo{stash_gradient, "stash_gradient", compute, kGradient | kHasLevel, Over::none,
           kNotSummed + Effects{{A::end, R::gradient}, {A::make, R::level}}},
    OpInfo{add_gradient, "add_gradient", compute, kGradient | kHasLevel, Over::none,
           kNotSummed + Effects{{A::end, R::level}, {A::change, R::gradient}}},
    OpInfo{reduce_start, "reduce_start", reduce, kGradient, Over::shards,
           kNotSummed + Effects{{A::lend, R::gradient}, {A::restart, R::reduced},
                                {A::create, R::shard_gradient, S::own, When::overwrites},
                                {A::change, R::shard_gradient, S::own, When::accumulates}}},
    OpInfo{reduce_wait, "reduce_wait", compute, kGradient, Over::none, {{A::finish, R::reduced}, {A::reclaim, R::gradient}}},
    OpInfo{all_reduce_start, "all_reduce_start", reduce, kGradient, Over::replicas,
           kUsesSum + Effects{{A::bar, R::norm}, {A::begin, R::all_reduced}, {A::change, R::shard_gradient}}},
    OpInfo{all_reduce_wait, "all_reduce_wait", compute, kGradient, Over::none, {{A::finish, R::all_reduced}}},
    OpInfo{tie_reduce, "tie_reduce", compute, kGradient | kCompletes, Over::copies,
           kUsesSum + Effects{{A::use, R::all_reduced, S::own, When::replicated},
                              {A::use, R::host_gradient, S::own, When::offloaded}, {A::bar, R::tied_leaf},
                              {A::bar, R::norm}, {A::make, R::tied}}},
    OpInfo{tie_leaf, "tie_leaf", compute, kGradient | kHasMicroBatch | kCompletes, Over::copies,
           kNotSummed + Effects{{A::change, R::gradient}, {A::make, R::tied_leaf}}},
    OpInfo{share_loss, "share_loss", compute, kNeverGenerates, Over::stages,
           {{A::use, R::losses}, {A::bar, R::reduced_loss}, {A::make, R::shared_loss}}},
    OpInfo{share_logits, "share_logits", compute, kGenerates, Over::stages, {{A::use, R::losses}, {A::make, R::shared_loss}}},
    OpInfo{reduce_loss, "reduce_loss", compute, kNeverGenerates, Over::loss,
           {{A::use, R::losses}, {A::use, R::shared_loss, S::own, When::has_stages}, {A::make, R::reduced_loss}}},
    OpInfo{send, "send", send_next, kMessage, Over::any, {{A::use, R::value, S::leaving}}},
    // Without training, the batch says how many tokens a message has: the last one may be smaller.
    OpInfo{receive, "receive", receive_previous, kMessage, Over::any,
           {{A::use, R::batch, S::own, When::forward_only}, {A::make, R::value, S::arriving}}},
    OpInfo{send_gradient, "send_gradient", send_previous, kMessage | kTrains, Over::any,
           {{A::end, R::value_gradient, S::arriving}}},
    OpInfo{receive_gradient, "receive_gradient", receive_next, kMessage | kTrains, Over::any,
           {{A::make, R::value_gradient, S::leaving}}},
    OpInfo{dispatch, "dispatch", exchange, kExchange, Over::experts,
           {{A::use, R::value, S::sent}, {A::make, R::routes}, {A::make, R::value, S::inputs}}},
    OpInfo{combine, "combine", exchange, kExchange, Over::experts,
           {{A::use, R::value, S::outputs}, {A::use, R::routes}, {A::make, R::value, S::returned}}},
    OpInfo{combine_gradient, "combine_gradient", exchange, kExchange | kTrains, Over::experts,
           {{A::end, R::value_gradient, S::returned}, {A::use, R::routes}, {A::make, R::value_gradient, S::outputs}}},
    OpInfo{dispatch_gradient, "dispatch_gradient", exchange, kExchange | kTrains, Over::experts,
           {{A::end, R::value_gradient, S::inputs}, {A::end, R::routes}, {A::add, R::value_gradient, S::sent}}},
    OpInfo{gradient_norm, "gradient_norm", compute, kTrains | kCompletes, Over::all_shards,
           {{A::use, R::gradient, S::all_trained, When::in_place}, {A::use, R::reduced, S::all_trained, When::reduces},
            {A::bar, R::gradient, S::all_trained, When::reduces},
            {A::use, R::all_reduced, S::all_trained, When::replicated}, {A::use, R::tied, S::all_trained, When::tied},
            {A::use, R::tied_leaf, S::all_trained, When::tied_by_leaf},
            {A::bar, R::shard_gradient, S::all_trained, When::offloaded},
            {A::use, R::host_gradient, S::all_trained, When::offloaded}, {A::make, R::norm}}},
    OpInfo{join_norm, "join_norm", compute, kTrains, Over::tensor, {{A::use, R::norm}, {A::make, R::joined_norm}}},
    OpInfo{join_stage_norms, "join_stage_norms", compute, kTrains, Over::stages,
           {{A::use, R::norm}, {A::use, R::joined_norm, S::own, When::has_tensor_group}, {A::make, R::stage_norm}}},
    OpInfo{check_finite, "check_finite", compute, kTrains, Over::none,
           {{A::use, R::norm}, {A::use, R::joined_norm, S::own, When::has_tensor_group},
            {A::use, R::stage_norm, S::own, When::has_stages}, {A::use, R::shared_loss, S::own, When::has_stages},
            {A::use, R::reduced_loss, S::own, When::has_loss_group}, {A::make, R::finite}}},
    OpInfo{update, "update", compute, kGradient, Over::none,
           {{A::use, R::norm}, {A::use, R::finite}, {A::bar, R::gathered}, {A::make, R::updated}, {A::change, R::weights},
            {A::take, R::shard_gradient}, {A::change, R::optimizer}}},
    OpInfo{update_state, "update_state", compute, kUnit | kTrains, Over::same_layers,
           {{A::use, R::finite}, {A::make, R::updated}, {A::change, R::weights}}},
    OpInfo{offload_start, "offload_start", copy, kUnit, Over::none,
           {{A::flush, R::weights, S::own, When::copies_weights},
            {A::flush, R::shard_gradient, S::own, When::copies_gradients},
            {A::flush, R::optimizer, S::own, When::copies_optimizer},
            {A::renew, R::host_gradient, S::own, When::copies_gradients}, {A::restart, R::offload}, {A::drop, R::reload}}},
    OpInfo{offload_wait, "offload_wait", compute, kUnit, Over::none, {{A::finish, R::offload}}},
    OpInfo{reload_start, "reload_start", copy, kUnit, Over::none,
           {{A::use, R::host_gradient, S::own, When::copies_gradients},
            {A::make, R::weights, S::own, When::copies_weights},
            {A::make, R::shard_gradient, S::own, When::copies_gradients},
            {A::make, R::optimizer, S::own, When::copies_optimizer}, {A::restart, R::reload}, {A::drop, R::offload}}},
    OpInfo{reload_wait, "reload_wait", compute, kUnit, Over::none, {{A::finish, R::reload}}},
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
/// Whether the operation moves rows between ranks, or messages to another stage: its inputs may stay in use after the
/// compute lane has moved on.
constexpr bool frees_beside_compute(OpKind kind) {
  return sends_message(kind) || has_trait(kind, kDispatches);
}
constexpr std::string_view lane_name(Lane lane) {
  return kLaneNames.at(static_cast<std::size_t>(lane));
}
constexpr std::string_view program_kind_name(ProgramKind kind) {
  return kProgramKindNames.at(static_cast<std::size_t>(kind));
}

}  // namespace stepforge
