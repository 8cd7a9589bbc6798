// SPDX-License-Identifier: Apache-2.0
// The rules of the checker, one function each, and the base class with which they are written. The rules run in the
// order of this file, and each relies on those before it. All throw ProgramError.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/step/checker.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Visits the operations in list order. Failures are reported at the current one.
class ListWalk {
 public:
  ListWalk(const ListWalk&) = delete;
  ListWalk& operator=(const ListWalk&) = delete;

 protected:
  explicit ListWalk(const StepProgram& program) : program_(program) {}
  ~ListWalk() = default;

  /// Calls visit(operation) for each operation. Afterwards the current position is the end of the program.
  template <typename Visit>
  void walk(const Visit& visit) {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
  }
  void go_to_end() { at_ = program_.operations.size(); }
  int here() const { return static_cast<int>(at_); }
  [[noreturn]] void fail(const std::string& reason) const { throw ProgramError(program_, at_, reason); }
  [[noreturn]] void fail_at(int operation, const std::string& reason) const {
    throw ProgramError(program_, static_cast<std::size_t>(operation), reason);
  }

  const ProgramUnit& unit(int index) const { return element(program_.units, index); }
  const ProgramBlock& block(const Operation& operation) const {
    return element(program_.blocks, operation.block);
  }
  bool trains() const { return program_.kind == ProgramKind::train; }
  /// "operation 3 (forward layers.0 m0)"
  std::string text(int operation) const;
  /// "fsdp {0, 1}", or "no group" for -1.
  std::string group_text(int group) const;

  const StepProgram& program_;

 private:
  std::size_t at_ = 0;
};

/// Indices, lanes and fields are valid, and `needs` lists earlier operations only. `world_size` is the number
/// of ranks.
void check_structure(const StepProgram& program, std::size_t world_size);

/// Every resource is in a state that allows what each operation does to it, all accesses are ordered, and nothing is left
/// over or missing after the step: the effects of operations.h and the states of resources.h. Every contribution to
/// a gradient is summed once and in the norm. Buffers are allocated before, and freed once after, all uses.
void check_resources(const StepProgram& program);

/// All rules above except check_structure(): those that concern one rank alone. Returns the
/// peak of live bytes.
int64_t check_one(const StepProgram& program);

/// Each send has a receive with the same tag, size and micro-batch, in the same order.
void check_messages(std::span<const StepProgram> all_ranks);

/// The ranks of a group agree on its members and on the sequence of its collectives.
void check_collectives(std::span<const StepProgram> all_ranks);

/// No deadlock: the lanes of all ranks can run to their end.
void check_waits(std::span<const StepProgram> all_ranks);

/// "fsdp {0, 1}": the same text on all ranks of the group.
std::string group_key(const RankGroup& group);

}  // namespace stepforge
