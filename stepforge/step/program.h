// SPDX-License-Identifier: Apache-2.0
// The step program: the training step of one rank as a list of operations. Plain data that the passes write,
// the checker proves, the executor runs and `stepforge plan` prints.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/base/dtype.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/cost.h"
#include "stepforge/step/operations.h"

namespace stepforge {

/// The parts of the state of a unit that an operation copies between host and device.
struct StateParts {
  bool weights = false;    ///< this rank's part of the masters
  bool gradients = false;  ///< this rank's part of the gradient
  bool optimizer = false;  ///< this rank's part of the optimizer state

  bool operator==(const StateParts&) const = default;
};

/// Memory that is live from the operation that allocates it to the one that frees it. A persistent buffer is
/// always live.
struct Buffer {
  std::string name;  ///< "bundle layers.2 m0"
  BufferKind kind = BufferKind::bundle;
  int64_t bytes = 0;
  bool persistent = false;
  DType dtype = DType::f32;  ///< of the elements of flat parameters, gradients and optimizer state
  int value = -1;            ///< of a bundle or its gradient
};

/// What a block sends over one group while it computes.
struct GroupExchange {
  int group = -1;  ///< index into StepProgram::groups; -1: nothing
  int64_t bytes = 0;

  bool operator==(const GroupExchange&) const = default;
};

struct Operation {
  OpKind kind = OpKind::forward;
  Lane lane = Lane::compute;
  int unit = -1;
  int block = -1;
  int micro_batch = -1;
  int level = -1;  ///< ordered mode: level of the summation tree
  int group = -1;  ///< index into StepProgram::groups, of a collective
  int peer = -1;   ///< global rank, for messages
  int tag = 0;     ///< which value a message carries, equal on both sides: value_tag()
  /// Communication: size of the whole message, of all shards for a gather or a reduction. update,
  /// stash_gradient, add_gradient and gradient_norm without a group: memory read and written.
  int64_t bytes = 0;
  std::array<GroupExchange, kBlockAxes> exchanges = {};  ///< of a block, by BlockAxis
  int64_t beside = 0;                                    ///< bytes of exchanges that move while it computes
  int64_t workspace = 0;                                 ///< bytes allocated and freed while it runs
  double flops = 0;                                      ///< of matrix products
  bool keep_graph = false;
  StateParts parts;            ///< reload_start, offload_start
  bool accumulate = false;     ///< reduce_start: adds to the gradient of the shard instead of overwriting it
  std::vector<int> needs;      ///< indices of earlier operations on other lanes that must have finished
  std::vector<int> reads;      ///< buffers
  std::vector<int> allocates;  ///< buffers
  std::vector<int> frees;      ///< buffers, freed when it has finished
};

/// An operation of this kind, on the lane of its kind.
Operation make_operation(OpKind kind, int unit = -1, int group = -1);

struct ProgramUnit {
  std::string name;
  bool trainable = true;
  bool resident = true;        ///< always gathered: no gather operations are needed
  int shard_group = -1;        ///< gathered and reduced over it; -1: not sharded
  int replica_group = -1;      ///< all-reduced over it; -1: there are no replicas
  int tie_group = -1;          ///< ranks of other stages that hold a copy of it; -1: none
  int64_t gathered_bytes = 0;  ///< of all shards, in the gather dtype
  int64_t reduced_bytes = 0;   ///< of the gradients of all shards, in the reduce dtype
  bool offloaded = false;      ///< its state is on the host, and on the device only while it is used
  bool state = false;          ///< of a block: not trained, but changed by update_state

  /// Whether its gradient is accumulated as a whole and then reduced into the shard of this rank. Otherwise
  /// it is accumulated in place.
  bool reduces() const { return shard_group >= 0 || offloaded; }
};

/// A tensor that passes between blocks, for each micro-batch: edges between the block that makes it and those that take
/// it.
struct ProgramValue {
  std::string name;   ///< of the block that makes it; "input of layers.3" if that is on another rank
  int producer = -1;  ///< block that makes it; for dispatched rows, the block of their tokens; -1: received
  std::vector<int> consumers;  ///< blocks; none if it is only sent
  DType dtype = DType::f32;
  int64_t rows = 0;  ///< for dispatched rows, the expected number
  int64_t width = 0;
  int64_t slices = 1;  ///< tokens per row; > 1 if the ranks of a tensor group hold slices of the tokens

  int64_t bytes() const { return rows * width * dtype_bytes(dtype); }
  bool has_gradient() const { return is_floating_point(dtype); }
};

struct ProgramBlock {
  std::string name;
  std::vector<int> units;
  int stage = 0;              ///< of the pipeline
  std::vector<int> inputs;    ///< values; none: a batch
  std::vector<int> outputs;   ///< values; none, of a head
  std::vector<int> arriving;  ///< values that are received before this block, the first of a stage
  std::vector<int> leaving;   ///< values that are sent after it, the last of a stage
  std::vector<int> kept;      ///< outputs that its backward reads
  int64_t experts = 0;  ///< number in its layer, over all ranks to which rows are dispatched; 0: no dispatch
  int64_t parts = 1;    ///< number of parts of each expert, each on another rank
  DispatchMethod method = DispatchMethod::all_to_all;
  std::vector<int> sent;      ///< values from which its inputs are dispatched
  std::vector<int> returned;  ///< values into which its outputs are combined
  bool trained_only = false;  ///< a further head, or needed only by further heads: runs in training only
  double loss_weight = 1;     ///< of a head
  int ahead = 0;  ///< how many tokens after the next one it predicts; it has the labels of those tokens
  bool weights_in_backward = true;              ///< its backward reads the weights of its units
  std::vector<std::string> recomputed_regions;  ///< and calls inside the block that run again in backward
  int64_t recomputed_bytes = 0;                 ///< which they need not keep
  double recomputed_flops = 0;                  ///< of backward, for them
  /// Groups over which its layers are divided, by BlockAxis: computing with them exchanges over the group.
  std::array<int, kBlockAxes> groups = {-1, -1, -1, -1};

  bool first() const { return inputs.empty(); }  ///< its input is a batch
  bool last() const { return outputs.empty(); }  ///< a head: computes a loss
  int& group(BlockAxis axis) { return groups.at(static_cast<std::size_t>(axis)); }
};

/// The step of one rank. Blocks are those of this rank, in forward order; on a pipeline stage none may be the first
/// or the last of the model.
struct StepProgram {
  ProgramKind kind = ProgramKind::train;
  int rank = 0;
  int micro_batches = 1;
  int ahead =
      0;  ///< in training: the largest `ahead` of the model's blocks; the labels of each depth are counted
  std::vector<RankGroup> groups;
  std::vector<ProgramUnit> units;
  std::vector<ProgramBlock> blocks;
  std::vector<ProgramValue> values;
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;
};

/// items[index], for the int indices of a program.
template <typename Items>
decltype(auto) element(Items& items, int index) {
  return items[static_cast<std::size_t>(index)];
}

/// The buffer of this kind, and of this value if one is given, among `buffers`, which an operation reads, allocates or
/// frees; -1 if there is none. An operation lists several buffers of one kind only for values.
int find_buffer(const StepProgram& program, const std::vector<int>& buffers, BufferKind kind, int value = -1);

/// The tag of the input values of a stage, or of their gradients.
constexpr int value_tag(int stage, bool gradient) {
  return 2 * stage + (gradient ? 1 : 0);
}

/// The lane of messages from member `self` of a pipeline of `size` ranks to member `peer`, or from it. Throws
/// UsageError if they are not neighbours.
Lane pipeline_lane(int self, int peer, int size, bool sends);

/// The kinds of the buffers of these parts.
std::vector<BufferKind> kinds_of(const StateParts& parts);

/// Whether the operation reads the weights of its block, so that they must be gathered.
bool reads_weights(const StepProgram& program, const Operation& operation);

/// The groups over which the operation runs or makes collectives, with the bytes of each.
std::vector<GroupExchange> collectives_of(const Operation& operation);

/// The bytes that it sends or moves, those of its exchanges included.
int64_t total_bytes(const Operation& operation);

/// "forward layers.3 m0 graph". Works for malformed programs too.
std::string operation_text(const StepProgram& program, const Operation& operation);

}  // namespace stepforge
