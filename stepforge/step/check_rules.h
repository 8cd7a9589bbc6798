// SPDX-License-Identifier: Apache-2.0
// The rules of the checker, one function each, and what they share. They run in the order of this file: a
// later one relies on the earlier.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/step/checker.h"
#include "stepforge/step/happens_before.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The program of one rank under proof.
struct CheckedProgram {
  const StepProgram& program;
  HappensBefore before;
};

/// A walk over the list of operations, which refuses the program at the operation where it stands.
class ListWalk {
 public:
  ListWalk(const ListWalk&) = delete;
  ListWalk& operator=(const ListWalk&) = delete;

 protected:
  explicit ListWalk(const StepProgram& program) : program_(program) {}
  ~ListWalk() = default;

  /// Calls visit(operation) for each. Then the walk stands at the end of the program.
  template <typename Visit>
  void walk(const Visit& visit) {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
  }
  void stand_at(std::size_t operation) { at_ = operation; }
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
  /// "dp_shard {0, 1}", or "no group" for -1.
  std::string group_text(int group) const;

  const StepProgram& program_;

 private:
  std::size_t at_ = 0;
};

/// A walk that also knows which operations have surely finished.
class RuleWalk : public ListWalk {
 protected:
  static constexpr int kNever = -1;  ///< instead of an operation

  explicit RuleWalk(const CheckedProgram& checked) : ListWalk(checked.program), before_(checked.before) {}

  /// "operation 3 (forward layers.0 m0)"
  std::string text(int operation) const;
  /// Fails unless `first`, if it is not kNever, is this operation or has surely finished when this one
  /// starts.
  void require_order(int first) const;

 private:
  const HappensBefore& before_;
};

/// `consumer` uses what `producer` put into its buffer of this kind.
struct Use {
  int producer = 0;
  int consumer = 0;
  BufferKind kind = BufferKind::bundle;
};

/// Indices, lanes and fields are sound, and needs point backward. `world_size` is the number of ranks.
void check_structure(const StepProgram& program, std::size_t world_size);

/// Inputs, graphs and gradients between blocks. Returns who uses what, for check_buffers, ordered by
/// consumer.
std::vector<Use> check_dataflow(const CheckedProgram& checked);

/// Units that are not resident are gathered where they are used.
void check_gathers(const CheckedProgram& checked);

/// Every contribution to a gradient is summed once, reduced once, measured, checked and used in one update.
void check_gradients(const CheckedProgram& checked);

/// The state of offloaded units is on the device where it is used there, and on the host afterwards.
void check_offload(const CheckedProgram& checked);

/// Labels are counted before the first loss, and the loss is reduced after the last.
void check_loss(const CheckedProgram& checked);

/// Buffers are allocated before, and freed once after, all uses.
void check_buffers(const CheckedProgram& checked, const std::vector<Use>& uses);

/// All rules above but the first: what holds for a rank whatever the others do. Returns the peak of live
/// bytes.
int64_t check_one(const StepProgram& program);

void check_messages(std::span<const StepProgram> all_ranks);

void check_collectives(std::span<const StepProgram> all_ranks);

void check_waits(std::span<const StepProgram> all_ranks);

/// "dp {0, 1}": equal for the same group on all its ranks.
std::string group_key(const ProgramGroup& group);

}  // namespace stepforge
