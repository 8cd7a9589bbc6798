// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// Levels of a tree. In addition, a leaf of each micro-batch may wait at a level of its own.
constexpr std::size_t kTreeLevels = 64;

class Structure : ListWalk {
 public:
  Structure(std::size_t world, const StepProgram& program) : ListWalk(program), world_(world) {}

  void check() {
    go_to_end();
    check_header();
    walk([this](const Operation& operation) {
      check_indices(operation);
      check_row(operation);
    });
  }

 private:
  void require_index(int index, std::size_t count, const char* name) const {
    if (index < 0 || static_cast<std::size_t>(index) >= count)
      fail(format("{} {} does not exist; the program has {}", name, index, count));
  }
  void require_optional_index(int index, std::size_t count, const char* name) const {
    if (index != -1) require_index(index, count, name);
  }
  void require_indices(const std::vector<int>& indices, std::size_t count, const char* name) const {
    for (const int index : indices) require_index(index, count, name);
  }
  std::size_t micro_batches() const { return static_cast<std::size_t>(program_.micro_batches); }

  void check_header() const {
    if (program_.micro_batches < 1)
      fail(format("a step needs at least one micro-batch, not {}", program_.micro_batches));
    for (const ProgramValue& value : program_.values) {
      require_optional_index(value.producer, program_.blocks.size(), "block");
      require_indices(value.consumers, program_.blocks.size(), "block");
    }
    for (const ProgramBlock& block : program_.blocks) {
      require_indices(block.units, program_.units.size(), "unit");
      for (const std::vector<int>* values : {&block.inputs, &block.outputs, &block.arriving, &block.leaving,
                                             &block.kept, &block.sent, &block.returned})
        require_indices(*values, program_.values.size(), "value");
      for (const int group : block.groups) require_optional_index(group, program_.groups.size(), "group");
    }
    for (const ProgramUnit& unit : program_.units) {
      require_optional_index(unit.shard_group, program_.groups.size(), "group");
      require_optional_index(unit.replica_group, program_.groups.size(), "group");
      require_optional_index(unit.tie_group, program_.groups.size(), "group");
      if (unit.resident && unit.reduces()) {
        fail(format("unit {} is {} and must be gathered", unit.name,
                    unit.shard_group >= 0 ? "sharded" : "offloaded"));
      }
    }
    for (const RankGroup& group : program_.groups) check_group(group);
    for (const Buffer& buffer : program_.buffers)
      if (buffer.bytes < 0) fail(format("buffer {} has {} bytes", buffer.name, buffer.bytes));
  }

  void check_group(const RankGroup& group) const {
    if (group.ranks.empty() || !std::is_sorted(group.ranks.begin(), group.ranks.end()) ||
        std::adjacent_find(group.ranks.begin(), group.ranks.end()) != group.ranks.end()) {
      fail(format("the ranks of group {} must be ascending and distinct", group_key(group)));
    }
    require_indices(group.ranks, world_, "rank");
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), program_.rank))
      fail(format("it is not a member of its group {}", group_key(group)));
  }

  void check_indices(const Operation& operation) const {
    require_optional_index(operation.unit, program_.units.size(), "unit");
    require_optional_index(operation.block, program_.blocks.size(), "block");
    require_optional_index(operation.group, program_.groups.size(), "group");
    for (const GroupExchange& exchange : operation.exchanges)
      require_optional_index(exchange.group, program_.groups.size(), "group");
    if (operation.beside < 0 || operation.beside > total_bytes(operation) - operation.bytes)
      fail(format("{} bytes move while it computes, but its exchanges have {}", operation.beside,
                  total_bytes(operation) - operation.bytes));
    if (operation.keep_graph && !trains())
      fail(format("no backward uses its graph in a program of kind {}", program_kind_name(program_.kind)));
    require_optional_index(operation.micro_batch, micro_batches(), "micro-batch");
    require_indices(operation.reads, program_.buffers.size(), "buffer");
    require_indices(operation.allocates, program_.buffers.size(), "buffer");
    require_indices(operation.frees, program_.buffers.size(), "buffer");
    for (const int needed : operation.needs)
      if (needed < 0 || needed >= here())
        fail(format("it needs operation {}, which is not an earlier one", needed));
  }

  /// The operation agrees with the row of its kind.
  void check_row(const Operation& operation) const {
    const OpInfo& row = op_info(operation.kind);
    const auto has = [&](unsigned trait) { return (row.traits & trait) != 0; };
    if (!has(kHasPeer) && operation.lane != row.lane)
      fail(format("it runs on lane {}, not {}", lane_name(operation.lane), lane_name(row.lane)));
    const bool generates = program_.kind == ProgramKind::generate;
    if (has(trains() ? kNeverTrains : kTrains) || has(generates ? kNeverGenerates : kGenerates))
      fail(format("it does not belong in a program of kind {}", program_kind_name(program_.kind)));
    if (has(kHasBlock)) require_index(operation.block, program_.blocks.size(), "block");
    if (has(kHasMicroBatch)) require_index(operation.micro_batch, micro_batches(), "micro-batch");
    if (has(kHasUnit)) require_index(operation.unit, program_.units.size(), "unit");
    if (has(kHasLevel)) require_index(operation.level, kTreeLevels + micro_batches(), "level");
    if (has(kHasPeer)) require_message_lane(operation);
    if (has(kHasBlock)) require_values(operation);
    if (has(kUsesUnits)) require_block_groups(operation);
    if (has(kDispatches) && block(operation).experts == 0)
      fail(format("no rows are dispatched to block {}", block(operation).name));
    require_group(operation, row.over);
    if (has(kHasUnit)) check_unit(operation);
  }

  /// A head has no outputs, all other blocks have some. Messages carry what passes between this rank and another.
  void require_values(const Operation& operation) const {
    const ProgramBlock& computed = block(operation);
    if (!has_trait(operation.kind, kHasPeer)) {
      if (has_trait(operation.kind, kRunsHead) != computed.last())
        fail(computed.last() ? "the head must run as loss, loss_forward_backward or logits"
                             : "only the head computes a loss or logits");
      return;
    }
    const bool leaves = operation.kind == OpKind::send || operation.kind == OpKind::receive_gradient;
    const std::vector<int>& values = leaves ? computed.leaving : computed.arriving;
    if (values.empty())
      fail(format("nothing {} the rank {} block {}", leaves ? "leaves" : "reaches",
                  leaves ? "after" : "before", computed.name));
    for (const int value : values) {
      const ProgramValue& edge = element(program_.values, value);
      if (!leaves && edge.producer >= 0)
        fail(format("block {} of this rank makes the value {} that it carries",
                    element(program_.blocks, edge.producer).name, edge.name));
    }
    const bool gradient =
        operation.kind == OpKind::send_gradient || operation.kind == OpKind::receive_gradient;
    const int tag = value_tag(computed.stage + (leaves ? 1 : 0), gradient);
    if (operation.tag != tag)
      fail(format("it has tag {}, but what it carries between stages has tag {}", operation.tag, tag));
  }

  void check_unit(const Operation& operation) const {
    const ProgramUnit& changed = unit(operation.unit);
    if (operation.kind == OpKind::update_state) {
      if (!changed.state) fail(format("unit {} is not state of a block", changed.name));
    } else if (has_trait(operation.kind, kTrains) && !changed.trainable) {
      fail(format("unit {} is frozen", changed.name));
    }
    switch (operation.kind) {
      case OpKind::gather_start:
        if (changed.resident) fail("the unit is resident: there is nothing to gather");
        return require_bytes(operation, changed.gathered_bytes);
      case OpKind::reduce_start:
        if (!changed.reduces())
          fail("the unit's gradient is accumulated in place: there is nothing to reduce");
        return require_bytes(operation, changed.reduced_bytes);
      case OpKind::reload_start:
        return check_copy(operation, operation.allocates);
      case OpKind::offload_start:
        return check_copy(operation, operation.reads);
      default:
        return;
    }
  }

  void check_copy(const Operation& operation, const std::vector<int>& buffers) const {
    if (!unit(operation.unit).offloaded) fail("the unit is not offloaded");
    const std::vector<BufferKind> kinds = kinds_of(operation.parts);
    if (kinds.empty()) fail("it copies nothing");
    int64_t bytes = 0;
    for (const BufferKind kind : kinds) {
      const int buffer = find_buffer(program_, buffers, kind);
      if (buffer < 0) fail(format("it has no buffer for the {} on the device", buffer_kind_name(kind)));
      bytes += element(program_.buffers, buffer).bytes;
    }
    require_bytes(operation, bytes);
  }

  void require_bytes(const Operation& operation, int64_t bytes) const {
    if (operation.bytes != bytes) fail(format("it moves {} bytes, but there are {}", operation.bytes, bytes));
  }

  void require_group(const Operation& operation, Over over) const {
    switch (over) {
      case Over::any:
        return require_index(operation.group, program_.groups.size(), "group");
      case Over::none:
        return require_group(operation, -1);
      case Over::shards:
        return require_group(operation, unit(operation.unit).shard_group);
      case Over::replicas:
        return require_group(operation, unit(operation.unit).replica_group);
      case Over::copies:
        return require_group(operation, unit(operation.unit).tie_group);
      case Over::all_shards:
        return require_all_shards(operation);
      case Over::labels:
        return require_group(operation, label_group(program_.groups));
      case Over::stages:
        return require_group(operation, find_group(program_.groups, kPipelineGroup));
      case Over::loss:
        return require_group(operation, find_group(program_.groups, kLossGroup));
      case Over::same_layers:
        return require_group(operation, stage_group(program_.groups));
      case Over::experts:
        return require_group(operation, find_group(program_.groups, kExpertGroup));
      case Over::tensor:
        return require_group(operation, find_group(program_.groups, kTensorGroup));
    }
  }

  /// Together with the tensor-parallel group, over which norms are joined next, the operation's group must reach all ranks
  /// that have other elements of a trained unit: all ranks of the unit's shard group.
  void require_all_shards(const Operation& operation) const {
    require_group(operation, find_group(program_.groups, kShardGroup));
    const std::vector<int> reached = reached_ranks(operation.group);
    for (const ProgramUnit& reduced : program_.units) {
      if (!reduced.trainable || reduced.shard_group < 0) continue;
      if (!std::ranges::includes(reached, element(program_.groups, reduced.shard_group).ranks))
        fail(format("it runs over {}, but must run over {}", group_text(operation.group),
                    group_text(reduced.shard_group)));
    }
  }

  /// The ranks whose numbers reach this rank through the group and then through the tensor-parallel group, ascending.
  std::vector<int> reached_ranks(int group) const {
    const auto members = [&](int index) {
      return index < 0 ? std::vector<int>{program_.rank} : element(program_.groups, index).ranks;
    };
    std::vector<int> reached;
    for (const int first : members(group))
      for (const int second : members(find_group(program_.groups, kTensorGroup)))
        reached.push_back(first + second - program_.rank);
    std::ranges::sort(reached);
    return reached;
  }

  /// Each neighbour and direction has its own lane.
  void require_message_lane(const Operation& operation) const {
    require_index(operation.peer, world_, "peer rank");
    require_index(operation.group, program_.groups.size(), "group");
    if (operation.peer == program_.rank) fail("a rank cannot send to itself");
    const std::vector<int>& ranks = element(program_.groups, operation.group).ranks;
    const auto member = [&](int rank) {
      return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    };
    const int size = static_cast<int>(ranks.size());
    if (member(operation.peer) == size)
      fail(format("rank {} is not a member of {}", operation.peer, group_text(operation.group)));
    const Lane lane =
        pipeline_lane(member(program_.rank), member(operation.peer), size, sends_message(operation.kind));
    if (operation.lane != lane)
      fail(format("it runs on lane {}, not {}", lane_name(operation.lane), lane_name(lane)));
  }

  void require_group(const Operation& operation, int expected) const {
    if (operation.group != expected)
      fail(
          format("it runs over {}, but must run over {}", group_text(operation.group), group_text(expected)));
  }

  void require_block_groups(const Operation& operation) const {
    const ProgramBlock& computed = block(operation);
    for (std::size_t axis = 0; axis < kBlockAxes; ++axis) {
      const int group = operation.exchanges.at(axis).group;
      if (group == computed.groups.at(axis)) continue;
      fail(format("it runs over {}, but the layers of block {} are divided over {}", group_text(group),
                  computed.name, group_text(computed.groups.at(axis))));
    }
  }

  std::size_t world_;
};

}  // namespace

std::string group_key(const RankGroup& group) {
  std::vector<std::string> ranks;
  ranks.reserve(group.ranks.size());
  for (const int rank : group.ranks) ranks.push_back(format("{}", rank));
  return format("{} {{{}}}", group.name, join(ranks, ", "));
}

void check_structure(const StepProgram& program, std::size_t world_size) {
  Structure(world_size, program).check();
}

}  // namespace stepforge
