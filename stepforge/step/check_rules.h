// SPDX-License-Identifier: Apache-2.0
// The rules of the checker, one function each, and the base classes with which they are written. The rules
// run in the order of this file, and each relies on those before it. All throw ProgramError.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/step/checker.h"
#include "stepforge/step/happens_before.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The program of one rank that is being checked.
struct CheckedProgram {
  const StepProgram& program;
  HappensBefore before;
};

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
  /// "fsdp {0, 1}", or "no group" for -1.
  std::string group_text(int group) const;

  const StepProgram& program_;

 private:
  std::size_t at_ = 0;
};

/// Instead of the index of an operation: it has not occurred.
inline constexpr int kNever = -1;

/// A ListWalk that also knows which operations have finished when the current one starts.
class RuleWalk : public ListWalk {
 protected:
  explicit RuleWalk(const CheckedProgram& checked) : ListWalk(checked.program), before_(checked.before) {}

  /// "operation 3 (forward layers.0 m0)"
  std::string text(int operation) const;
  /// Fails unless `first` is kNever, is the current operation, or has finished when the current one starts.
  void require_order(int first) const;
  /// Fails with `reason` if `first` is kNever; otherwise like require_order().
  void require_done(int first, std::string_view reason) const;
  /// Fails with "`fact` by operation 3 (...)" unless `earlier` is kNever.
  void require_never(int earlier, std::string_view fact) const;
  /// Sets `operation` to the current one; fails like require_never() if it was set before.
  void once(int& operation, std::string_view fact) const {
    require_never(operation, fact);
    operation = here();
  }

 private:
  const HappensBefore& before_;
};

/// `consumer` uses the buffer of this kind that `producer` has filled.
struct Use {
  int producer = 0;
  int consumer = 0;
  BufferKind kind = BufferKind::bundle;
};

/// Indices, lanes and fields are valid, and `needs` lists earlier operations only. `world_size` is the number
/// of ranks.
void check_structure(const StepProgram& program, std::size_t world_size);

/// Inputs, graphs and gradients between blocks. Returns the uses of buffers, ordered by consumer, for
/// check_buffers.
std::vector<Use> check_dataflow(const CheckedProgram& checked);

/// Units that are not resident are gathered where they are used.
void check_gathers(const CheckedProgram& checked);

/// Every contribution to a gradient is summed once, reduced once, included in the norm and used in one
/// update.
void check_gradients(const CheckedProgram& checked);

/// The state of offloaded units is on the device where it is used there, and on the host afterwards.
void check_offload(const CheckedProgram& checked);

/// Labels are counted before the first loss, and the loss is reduced after the last.
void check_loss(const CheckedProgram& checked);

/// Buffers are allocated before, and freed once after, all uses.
void check_buffers(const CheckedProgram& checked, const std::vector<Use>& uses);

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
