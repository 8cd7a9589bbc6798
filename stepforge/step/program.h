// The step program: one rank's step as a list of operations. Plain data. The passes write it, the checker
// proves it, the executor runs it, the drawings show it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

enum class OpKind : uint8_t {
  count_labels,           ///< valid labels of the whole step, over the group: the loss's divisor
  load_batch,             ///< takes micro-batch m from the loader
  gather_start,           ///< unit u: begins to fill its slot with the whole unit in the gather dtype
  gather_wait,            ///< unit u may be used from here on
  release,                ///< unit u's slot is free again
  forward,                ///< block b on micro-batch m; keeps its graph if keep_graph
  recompute,              ///< block b on m again, now with its graph
  loss,                   ///< head block, evaluation: loss only
  loss_forward_backward,  ///< head block, training: loss, gradients of the head and of its input in one
                          ///< operation
  logits,                 ///< head block, generation: logits of the last position of each document
  backward,               ///< block b on m: gradients of inputs and weights
  backward_input,         ///< ... of inputs only; weights' part is queued
  backward_weight,        ///< ... the queued part
  start_gradient,  ///< unit u's gradient is empty: the next write overwrites; of a sharded or offloaded unit
                   ///< it lies in a buffer as large as the whole unit
  stash_gradient,  ///< ordered mode: unit u's gradient moves to the tree's level l
  add_gradient,    ///< ordered mode: unit u's gradient = level l + gradient; the level is freed
  reduce_start,  ///< unit u: begins to sum the whole gradient over the shard group into this rank's shard of
                 ///< it
  reduce_wait,   ///< ... has done so; the whole gradient is no longer needed
  all_reduce_start,  ///< unit u: sum over the replicas
  all_reduce_wait,
  tie_reduce,     ///< sums a tied parameter's gradient over its holders
  reduce_loss,    ///< sums loss and counts over the group
  send,           ///< a bundle to `peer`
  receive,        ///< a bundle from `peer`
  gradient_norm,  ///< global norm of all trainable units' gradients, clip coefficient
  check_finite,   ///< the step stops or is skipped here if loss or norm is not finite
  update,         ///< unit u: one optimizer pass
  offload_start,  ///< parts of an offloaded unit's state: begins to copy them to the host
  offload_wait,   ///< ... the host has them
  reload_start,   ///< parts of an offloaded unit's state: begins to copy them to the device
  reload_wait,    ///< ... the device has them
};

std::string_view op_name(OpKind kind);

/// Operations of one lane run in list order; lanes run beside each other, tied only by Operation::needs.
/// Traffic of one group on several lanes may overlap: each pair of lane and group has a communicator of its
/// own.
enum class Lane : uint8_t { compute, gather, reduce, peer, copy };

std::string_view lane_name(Lane lane);

/// On which lane operations of this kind run.
Lane lane_of(OpKind kind);

enum class BufferKind : uint8_t {
  weights,
  gradients,  ///< of this rank's shard
  optimizer,
  gather_slot,
  batch,
  bundle,
  graph,
  bundle_gradient,
  gradient_level,
  whole_gradient,  ///< of a unit that is sharded or offloaded, until it is reduced
  kv_cache,
  host  ///< an offloaded unit's state, in the memory of the host
};

std::string_view buffer_kind_name(BufferKind kind);

/// Which parts of a unit's state an operation copies between host and device.
struct StateParts {
  bool weights = false;    ///< this rank's part of the masters
  bool gradients = false;  ///< ... of the gradient
  bool optimizer = false;  ///< ... of the optimizer's state

  bool operator==(const StateParts&) const = default;
};

/// Memory with a life: from the operation that allocates it to the one that frees it. Persistent buffers live
/// always.
struct Buffer {
  std::string name;  ///< "hidden layers.2 m0"
  BufferKind kind = BufferKind::bundle;
  int64_t bytes = 0;
  bool persistent = false;
};

struct Operation {
  OpKind kind = OpKind::forward;
  Lane lane = Lane::compute;
  int unit = -1;
  int block = -1;
  int micro_batch = -1;
  int level = -1;         ///< ordered mode: level of the summation tree
  int group = -1;         ///< index into StepProgram::groups, for collectives
  int peer = -1;          ///< global rank, for send and receive
  int tag = 0;            ///< which bundle a send or receive carries, equal on both sides
  int64_t bytes = 0;      ///< communication: size of the message, a gather's or reduction's as a whole;
                          ///< gradient_norm without a group, update, stash, add: memory read and written
  int64_t workspace = 0;  ///< bytes allocated and freed while it runs
  double flops = 0;       ///< of matrix products
  bool keep_graph = false;
  StateParts parts;            ///< reload_start, offload_start
  bool accumulate = false;     ///< reduce_start: adds to the shard's gradient instead of overwriting it
  std::vector<int> needs;      ///< indices of earlier operations on other lanes that must have finished
  std::vector<int> reads;      ///< buffers
  std::vector<int> allocates;  ///< buffers that come to life here
  std::vector<int> frees;      ///< buffers that end when it has finished
};

inline constexpr std::string_view kShardGroup = "dp_shard";
inline constexpr std::string_view kReplicaGroup = "dp_replicate";
inline constexpr std::string_view kLossGroup = "loss";

struct ProgramGroup {
  std::string name;        ///< "dp_shard"
  std::vector<int> ranks;  ///< global ranks, ascending
};

struct ProgramUnit {
  std::string name;
  bool trainable = true;
  bool resident = true;  ///< always gathered: no gather operations are needed
  int shard_group = -1;  ///< its ranks hold equal parts: gathered and reduced over it; -1: whole on this rank
  int replica_group = -1;      ///< then all_reduce over this group; -1: none
  int64_t gathered_bytes = 0;  ///< of all shards joined, as they are gathered
  int64_t reduced_bytes = 0;   ///< ... as their gradients are reduced
  bool offloaded = false;      ///< its state lives on the host and is on the device while it is used

  /// Its gradient is written whole, and reduced into this rank's part of it; else it is written there.
  bool reduces() const { return shard_group >= 0 || offloaded; }
};

struct ProgramBlock {
  std::string name;
  std::vector<int> units;
  bool first = false;                           ///< takes a batch, no bundle
  bool last = false;                            ///< the head: makes the loss
  bool weights_in_backward = true;              ///< its backward reads its units' weights
  std::vector<std::string> recomputed_regions;  ///< regions inside the block that run again in backward
};

enum class ProgramKind : uint8_t { train, evaluate, generate };

std::string_view program_kind_name(ProgramKind kind);

/// One rank's step. Blocks are this rank's, in forward order; on a pipeline stage `first` and `last` may be
/// false for all.
struct StepProgram {
  ProgramKind kind = ProgramKind::train;
  int rank = 0;
  int micro_batches = 1;
  std::vector<ProgramGroup> groups;
  std::vector<ProgramUnit> units;
  std::vector<ProgramBlock> blocks;
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;
};

/// The buffer of this kind among `buffers` (an operation's reads, allocates or frees), -1 if there is none.
/// An operation never lists two of one kind in one of these.
int find_buffer(const StepProgram& program, const std::vector<int>& buffers, BufferKind kind);

/// The buffers of these parts: weights, gradients, optimizer.
std::vector<BufferKind> kinds_of(const StateParts& parts);

/// "forward layers.3 m0 graph": what an operation does, without its index. Safe for malformed programs.
std::string operation_text(const StepProgram& program, const Operation& operation);

}  // namespace stepforge
