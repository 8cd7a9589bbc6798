// SPDX-License-Identifier: Apache-2.0
// What the operations of a step program work on: one row of one table for each resource. An operation has effects on
// resources (operations.h). The checker follows the state of every resource through a program, needs_pass() derives
// from the effects which operations must wait for each other, and buffer_pass() which buffers they read and allocate.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace stepforge {

enum class BufferKind : uint8_t {
  weights,
  gradients,  ///< of this rank's shard
  optimizer,
  gather_slot,
  batch,
  bundle,           ///< a value: the output of a block
  graph,            ///< what autograd saved in a forward
  bundle_gradient,  ///< the gradient of a bundle
  weight_inputs,    ///< the part of what autograd saved that backward_weight needs
  weight_queue,     ///< what backward_input computes for backward_weight
  routes,           ///< where the rows of a dispatch have gone
  gradient_level,
  whole_gradient,  ///< of a unit that is sharded or offloaded, until it is reduced
  kv_cache,
  host  ///< the state of an offloaded unit, in host memory
};

inline constexpr std::array<std::string_view, 15> kBufferKindNames = {
    "weights", "gradients",      "optimizer",       "gather_slot",   "batch",
    "bundle",  "graph",          "bundle_gradient", "weight_inputs", "weight_queue",
    "routes",  "gradient_level", "whole_gradient",  "kv_cache",      "host"};

constexpr std::string_view buffer_kind_name(BufferKind kind) {
  return kBufferKindNames.at(static_cast<std::size_t>(kind));
}

enum class Resource : uint8_t {
  batch,
  value,           ///< what a block passes to others
  value_gradient,  ///< gradient of a value: the sum over all blocks that take it
  run,             ///< the computation of a block: forward, loss or logits
  graph,
  weight_inputs,
  weight_queue,
  routes,          ///< where the rows that a block takes came from
  gathered,        ///< the gathered copy of a unit. A resident unit always has it
  gradient,        ///< what is accumulated for a unit
  level,           ///< a stashed gradient
  reduced,         ///< the sum of the gradient over the shard group
  all_reduced,     ///< the sum over the replicas
  tied,            ///< the sum over the copies of a tied unit
  tied_leaf,       ///< the same for one micro-batch
  updated,         ///< by the optimizer, or by a tally
  weights,         ///< state of a unit on the device: always there, except for offloaded units
  shard_gradient,  ///< likewise
  optimizer,       ///< likewise
  host_gradient,   ///< of an offloaded unit, of this step
  reload,          ///< copies of an offloaded unit to the device
  offload,         ///< copies to the host
  labels,
  losses,  ///< of this rank
  shared_loss,
  reduced_loss,
  norm,
  joined_norm,
  stage_norm,
  finite,
  buffer  ///< memory; its effects are Operation::allocates, reads and frees
};

/// What a resource belongs to.
enum class OwnerKind : uint8_t { micro_batch, value, block, unit, leaf, level, step, buffer };

/// When an effect takes place, or a resource must be made.
enum class When : uint8_t {
  always,
  never,
  forward_only,   ///< the program does not train
  keeps_graph,    ///< the operation keeps its graph
  reads_weights,  ///< see reads_weights()
  overwrites,     ///< the operation does not accumulate
  accumulates,
  copies_weights,  ///< the operation copies them
  copies_gradients,
  copies_optimizer,
  reduces,   ///< ProgramUnit::reduces()
  in_place,  ///< not `reduces`
  replicated,
  tied,          ///< the unit is tied, and its whole gradient is summed over the copies
  tied_by_leaf,  ///< the unit is tied, and its gradients of micro-batches are summed
  offloaded,
  trained,  ///< the unit is trainable, and the program trains
  changes,  ///< the same, or it is state that the program changes
  runs,     ///< the block runs in this program
  has_label_group,
  has_stages,
  has_loss_group,
  has_tensor_group
};

/// Which instances of a resource an effect is on.
enum class Selector : uint8_t {
  own,          ///< of the unit, level, micro-batch, block or step of the operation
  inputs,       ///< the values that its block takes
  outputs,      ///< the values that its block makes
  kept,         ///< the outputs that its backward needs
  sent,         ///< the values from which its block's inputs are dispatched
  returned,     ///< the values into which its block's outputs are combined
  arriving,     ///< the values that the stage of its block receives
  leaving,      ///< the values that the stage of its block sends
  block_units,  ///< the units of its block
  trained,      ///< the trainable units of its block
  all_trained   ///< all trainable units
};

constexpr bool selects_units(Selector selector) {
  return selector >= Selector::block_units;
}

enum class State : uint8_t {
  absent,
  under_way,  ///< being made on another lane, or lent to an operation there
  present,
  changed,  ///< since it was made. On the device: since it was copied from the host
  gone      ///< it existed once, and cannot be made again
};

/// A set of states.
constexpr unsigned bit(State state) {
  return 1U << static_cast<unsigned>(state);
}

enum class Access : uint8_t {
  use,      ///< reads
  bar,      ///< must not exist
  make,     ///< a new one
  begin,    ///< starts to make one
  restart,  ///< starts to make one, or another version of it
  finish,   ///< waits until it is made
  change,   ///< writes into it
  add,      ///< makes one, or adds to it
  create,   ///< makes one that differs from what the host has
  take,     ///< reads it for the last time
  flush,    ///< moves what has changed to the host
  renew,    ///< makes one, or another version of it
  lend,     ///< gives it to an operation on another lane
  reclaim,  ///< waits for that operation; it no longer exists
  end,      ///< it no longer exists
  drop      ///< it no longer exists, if it did
};

struct AccessInfo {
  Access access = Access::use;
  unsigned from = 0;          ///< set of State
  State to = State::present;  ///< unless `keeps`
  bool exclusive = false;     ///< ordered with all other accesses; otherwise only with exclusive ones
  bool keeps = false;
};

namespace resource_table {

using enum State;

inline constexpr unsigned kExists = bit(present) | bit(changed);

// clang-format off
inline constexpr std::array kAccesses = {
    AccessInfo{Access::use, kExists, present, false, true},
    AccessInfo{Access::bar, bit(absent), absent, false, true},
    AccessInfo{Access::make, bit(absent), present, true},
    AccessInfo{Access::begin, bit(absent), under_way, true},
    AccessInfo{Access::restart, bit(absent) | bit(under_way) | kExists, under_way, true},
    AccessInfo{Access::finish, bit(under_way), present, true},
    AccessInfo{Access::change, kExists, changed, true},
    AccessInfo{Access::add, bit(absent) | kExists, present, true},
    AccessInfo{Access::create, bit(absent), changed, true},
    AccessInfo{Access::take, bit(present), absent, true},
    AccessInfo{Access::flush, bit(changed), absent, true},
    AccessInfo{Access::renew, bit(absent) | kExists, present, true},
    AccessInfo{Access::lend, kExists, under_way, true},
    AccessInfo{Access::reclaim, bit(under_way), absent, true},
    AccessInfo{Access::end, kExists, absent, true},
    AccessInfo{Access::drop, bit(absent) | bit(under_way) | kExists, absent, true},
};
// clang-format on

}  // namespace resource_table

constexpr const AccessInfo& access_info(Access access) {
  return resource_table::kAccesses.at(static_cast<std::size_t>(access));
}

/// Whether the access makes a resource, and with it its memory. `exists`: there already is one.
constexpr bool makes(Access access, bool exists) {
  return access == Access::make || access == Access::begin || access == Access::create ||
         (access == Access::add && !exists);
}

inline constexpr int kNoBuffer = -1;

struct ResourceInfo {
  Resource resource;
  OwnerKind owner;
  std::string_view noun;    ///< "{}" is the name of the owner
  std::string_view done;    ///< it was ...
  std::string_view active;  ///< while it is under way, it is being ...
  std::string_view undone;  ///< when it ends, it was ...
  int buffer = kNoBuffer;   ///< BufferKind of its memory
  unsigned at_end =
      resource_table::kExists | bit(State::absent) | bit(State::gone);  ///< allowed after the step
  bool once = false;            ///< it cannot be made again after its end
  When required = When::never;  ///< it must exist after the step
};

namespace resource_table {

inline constexpr unsigned kEnded = bit(absent) | bit(gone);
inline constexpr unsigned kAny = kExists | kEnded | bit(under_way);
/// Changes on the device must have been copied to the host.
inline constexpr unsigned kClean = kEnded | bit(present);

constexpr int of(BufferKind kind) {
  return static_cast<int>(kind);
}

using enum Resource;

// clang-format off
inline constexpr std::array kRows = {
    ResourceInfo{batch, OwnerKind::micro_batch, "{}", "loaded", "loaded", "", of(BufferKind::batch)},
    ResourceInfo{value, OwnerKind::value, "value {}", "computed or received", "", "", of(BufferKind::bundle)},
    ResourceInfo{value_gradient, OwnerKind::value, "the gradient of value {}", "computed or received", "", "used",
                 of(BufferKind::bundle_gradient), kAny, true},
    ResourceInfo{run, OwnerKind::block, "block {}", "run", "", "", kNoBuffer, kAny, false, When::runs},
    ResourceInfo{graph, OwnerKind::block, "the graph of block {}", "kept or recomputed", "", "used",
                 of(BufferKind::graph), kEnded, true},
    ResourceInfo{weight_inputs, OwnerKind::block, "what the weight gradient of block {} needs", "kept", "", "used",
                 of(BufferKind::weight_inputs), kEnded, true},
    ResourceInfo{weight_queue, OwnerKind::block, "the weight gradient of block {}", "queued", "", "computed",
                 of(BufferKind::weight_queue), kEnded, true},
    ResourceInfo{routes, OwnerKind::block, "the dispatch to block {}", "made", "", "returned",
                 of(BufferKind::routes), kAny, true},
    ResourceInfo{gathered, OwnerKind::unit, "unit {}", "gathered", "gathered", "released",
                 of(BufferKind::gather_slot), kEnded},
    ResourceInfo{gradient, OwnerKind::unit, "the gradient of unit {}", "started", "reduced", "stashed or reduced",
                 of(BufferKind::whole_gradient), kAny},
    ResourceInfo{level, OwnerKind::level, "{}", "filled", "", "emptied", of(BufferKind::gradient_level), kEnded},
    ResourceInfo{reduced, OwnerKind::unit, "the gradient of unit {}", "reduced", "reduced", ""},
    ResourceInfo{all_reduced, OwnerKind::unit, "the gradient of unit {}", "all-reduced", "all-reduced", ""},
    ResourceInfo{tied, OwnerKind::unit, "the gradient of unit {}", "summed over its copies", "", ""},
    ResourceInfo{tied_leaf, OwnerKind::leaf, "the gradient of unit {}", "summed over its copies", "", ""},
    ResourceInfo{updated, OwnerKind::unit, "unit {}", "updated", "", "", kNoBuffer, kAny, false, When::changes},
    ResourceInfo{weights, OwnerKind::unit, "the device's copy of the weights of unit {}", "made", "",
                 "taken, or written back to the host", of(BufferKind::weights), kClean},
    ResourceInfo{shard_gradient, OwnerKind::unit, "the device's copy of the gradient of unit {}", "made", "",
                 "taken, or written back to the host", of(BufferKind::gradients), kClean},
    ResourceInfo{optimizer, OwnerKind::unit, "the device's copy of the moments of unit {}", "made", "",
                 "taken, or written back to the host", of(BufferKind::optimizer), kClean},
    ResourceInfo{host_gradient, OwnerKind::unit, "the host's copy of the gradient of unit {}", "made", "", ""},
    ResourceInfo{reload, OwnerKind::unit, "the copy of unit {} to the device", "started", "started", "followed", kNoBuffer,
                 kAny},
    ResourceInfo{offload, OwnerKind::unit, "the copy of unit {} to the host", "started", "started", "followed", kNoBuffer,
                 kAny},
    ResourceInfo{labels, OwnerKind::step, "the number of labels", "summed", "", "", kNoBuffer, kAny, false,
                 When::has_label_group},
    ResourceInfo{losses, OwnerKind::step, "the loss", "made", "", ""},
    ResourceInfo{shared_loss, OwnerKind::step, "the result of the last stage", "shared", "", "", kNoBuffer, kAny,
                 false, When::has_stages},
    ResourceInfo{reduced_loss, OwnerKind::step, "the loss", "reduced", "", "", kNoBuffer, kAny, false,
                 When::has_loss_group},
    ResourceInfo{norm, OwnerKind::step, "the gradient norm", "computed", "", ""},
    ResourceInfo{joined_norm, OwnerKind::step, "the norm of the parts of tensors", "joined", "", ""},
    ResourceInfo{stage_norm, OwnerKind::step, "the norm of the stages", "joined", "", ""},
    ResourceInfo{finite, OwnerKind::step, "the step", "checked to be finite", "", ""},
    ResourceInfo{buffer, OwnerKind::buffer, "buffer {}", "allocated", "", "freed", kNoBuffer, kEnded, true, When::always},
};
// clang-format on

constexpr bool rows_follow_the_enumerations() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].resource) != i) return false;
  for (std::size_t i = 0; i < kAccesses.size(); ++i)
    if (static_cast<std::size_t>(kAccesses[i].access) != i) return false;
  return kRows.size() == static_cast<std::size_t>(Resource::buffer) + 1 &&
         kAccesses.size() == static_cast<std::size_t>(Access::drop) + 1;
}
static_assert(rows_follow_the_enumerations());

}  // namespace resource_table

constexpr const ResourceInfo& resource_info(Resource resource) {
  return resource_table::kRows.at(static_cast<std::size_t>(resource));
}

/// What an operation does to a resource.
struct Effect {
  Access access = Access::use;
  Resource resource = Resource::batch;
  Selector selector = Selector::own;
  When when = When::always;
};

/// A list of at most 16.
struct Effects {
  std::array<Effect, 16> items = {};
  std::size_t count = 0;

  constexpr Effects() = default;
  constexpr Effects(std::initializer_list<Effect> effects) {
    for (const Effect& effect : effects) items.at(count++) = effect;
  }
  constexpr const Effect* begin() const { return items.data(); }
  constexpr const Effect* end() const { return items.data() + count; }
};

/// One after the other.
constexpr Effects operator+(Effects first, const Effects& second) {
  for (const Effect& effect : second) first.items.at(first.count++) = effect;
  return first;
}

}  // namespace stepforge
