#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Structure {
 public:
  Structure(std::size_t world, const StepProgram& program) : world_(world), program_(program) {}

  void check() {
    check_header();
    for (at_ = 0; at_ < program_.operations.size(); ++at_) check_operation(program_.operations[at_]);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw ProgramError(program_, at_, reason); }

  void require_index(int index, std::size_t count, const char* what) const {
    if (index < 0 || static_cast<std::size_t>(index) >= count)
      fail(format("{} {} does not exist; the program has {}", what, index, count));
  }
  void require_optional_index(int index, std::size_t count, const char* what) const {
    if (index != -1) require_index(index, count, what);
  }
  void require_indices(const std::vector<int>& indices, std::size_t count, const char* what) const {
    for (const int index : indices) require_index(index, count, what);
  }

  void check_header() {
    at_ = program_.operations.size();
    if (program_.micro_batches < 1)
      fail(format("a step has at least one micro-batch, not {}", program_.micro_batches));
    for (const ProgramBlock& block : program_.blocks)
      require_indices(block.units, program_.units.size(), "unit");
    for (const ProgramUnit& unit : program_.units) {
      require_optional_index(unit.shard_group, program_.groups.size(), "group");
      require_optional_index(unit.replica_group, program_.groups.size(), "group");
      if (unit.resident && unit.reduces()) {
        fail(format("unit {} is {} and must be gathered", unit.name,
                    unit.shard_group >= 0 ? "sharded" : "offloaded"));
      }
    }
    for (const ProgramGroup& group : program_.groups) {
      if (group.ranks.empty() || !std::is_sorted(group.ranks.begin(), group.ranks.end()) ||
          std::adjacent_find(group.ranks.begin(), group.ranks.end()) != group.ranks.end()) {
        fail(format("the ranks of group {} must be ascending and distinct", group_key(group)));
      }
      require_indices(group.ranks, world_, "rank");
      if (!std::binary_search(group.ranks.begin(), group.ranks.end(), program_.rank))
        fail(format("it is not a member of its group {}", group_key(group)));
    }
    for (const Buffer& buffer : program_.buffers)
      if (buffer.bytes < 0) fail(format("buffer {} has {} bytes", buffer.name, buffer.bytes));
  }

  void check_operation(const Operation& operation) const {
    require_optional_index(operation.unit, program_.units.size(), "unit");
    require_optional_index(operation.block, program_.blocks.size(), "block");
    require_optional_index(operation.group, program_.groups.size(), "group");
    require_optional_index(operation.micro_batch, static_cast<std::size_t>(program_.micro_batches),
                           "micro-batch");
    require_indices(operation.reads, program_.buffers.size(), "buffer");
    require_indices(operation.allocates, program_.buffers.size(), "buffer");
    require_indices(operation.frees, program_.buffers.size(), "buffer");
    for (const int needed : operation.needs)
      if (needed < 0 || static_cast<std::size_t>(needed) >= at_)
        fail(format("it needs operation {}, which is not an earlier one", needed));
    if (operation.lane != lane_of(operation.kind)) {
      fail(format("it runs on lane {}, not {}", lane_name(operation.lane),
                  lane_name(lane_of(operation.kind))));
    }
    check_fields(operation);
  }

  void check_fields(const Operation& operation) const {
    switch (operation.kind) {
      case OpKind::load_batch:
        require_index(operation.micro_batch, static_cast<std::size_t>(program_.micro_batches), "micro-batch");
        return;
      case OpKind::forward:
      case OpKind::recompute:
      case OpKind::loss:
      case OpKind::loss_forward_backward:
      case OpKind::logits:
      case OpKind::backward:
      case OpKind::backward_input:
      case OpKind::backward_weight:
        require_place(operation);
        return;
      case OpKind::send:
      case OpKind::receive:
        require_place(operation);
        require_index(operation.peer, world_, "peer rank");
        if (operation.peer == program_.rank) fail("a rank sends nothing to itself");
        return;
      case OpKind::gather_start:
        require_unit_group(operation, &ProgramUnit::shard_group);
        return;
      case OpKind::reduce_start:
        require_unit_group(operation, &ProgramUnit::shard_group);
        if (!program_.units[static_cast<std::size_t>(operation.unit)].reduces())
          fail("the unit's gradient is written where it stays: there is nothing to reduce");
        return;
      case OpKind::all_reduce_start:
        require_unit_group(operation, &ProgramUnit::replica_group);
        require_index(operation.group, program_.groups.size(), "group");
        return;
      case OpKind::tie_reduce:
        require_index(operation.group, program_.groups.size(), "group");
        [[fallthrough]];
      case OpKind::gather_wait:
      case OpKind::release:
      case OpKind::start_gradient:
      case OpKind::reduce_wait:
      case OpKind::all_reduce_wait:
      case OpKind::update:
      case OpKind::offload_start:
      case OpKind::offload_wait:
      case OpKind::reload_start:
      case OpKind::reload_wait:
        require_index(operation.unit, program_.units.size(), "unit");
        return;
      case OpKind::stash_gradient:
      case OpKind::add_gradient:
        require_index(operation.unit, program_.units.size(), "unit");
        require_index(operation.level, kMaxLevels, "level");
        return;
      case OpKind::count_labels:
      case OpKind::reduce_loss:
      case OpKind::gradient_norm:
      case OpKind::check_finite:
        return;
    }
  }

  void require_place(const Operation& operation) const {
    require_index(operation.block, program_.blocks.size(), "block");
    require_index(operation.micro_batch, static_cast<std::size_t>(program_.micro_batches), "micro-batch");
  }

  /// The operation's group must be the one that its unit has for this purpose (none included).
  void require_unit_group(const Operation& operation, int ProgramUnit::* purpose) const {
    require_index(operation.unit, program_.units.size(), "unit");
    const int expected = program_.units[static_cast<std::size_t>(operation.unit)].*purpose;
    if (operation.group != expected) {
      fail(format("it runs over {}, but the unit's group is {}", group_text(operation.group),
                  group_text(expected)));
    }
  }

  std::string group_text(int group) const {
    return group < 0 ? "no group" : group_key(program_.groups[static_cast<std::size_t>(group)]);
  }

  static constexpr std::size_t kMaxLevels = 64;
  std::size_t world_;
  const StepProgram& program_;
  std::size_t at_ = 0;
};

}  // namespace

std::string group_key(const ProgramGroup& group) {
  std::vector<std::string> ranks;
  ranks.reserve(group.ranks.size());
  for (const int rank : group.ranks) ranks.push_back(format("{}", rank));
  return format("{} {{{}}}", group.name, join(ranks, ", "));
}

void check_structure(const StepProgram& program, std::size_t world_size) {
  Structure(world_size, program).check();
}

}  // namespace stepforge
