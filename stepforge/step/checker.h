// SPDX-License-Identifier: Apache-2.0
// Proves the step programs of all ranks sound before anything runs: no tensors, no communication.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// A program that must not run. The text names rank, operation and reason.
class ProgramError : public Error {
 public:
  /// `operation` is the program's operation count where the fault is that something never happens.
  ProgramError(const StepProgram& program, std::size_t operation, const std::string& reason);

  int rank() const { return rank_; }
  std::size_t operation() const { return operation_; }

 private:
  int rank_;
  std::size_t operation_;
};

struct CheckResult {
  std::vector<int64_t> peak_bytes;  ///< of each rank: most bytes live at once (MemoryAccount)
};

/// `all_ranks[r]` is the program of rank r. What is proved, each rule a function in step/check_rules.h:
/// - indices, lanes and fields are sound, and `needs` point backward;
/// - with several ranks, the labels of the step are counted before the first loss, and the loss is reduced
///   after the last;
/// - the computation of every block finds its input, graph and gradient, and uses each as often as it must;
/// - units that are not resident are gathered when used;
/// - the contributions of all blocks and micro-batches to the gradient of each trainable unit are summed
///   exactly once, reduced exactly once where the unit has groups, then measured, checked, and used in
///   exactly one update;
/// - the state of offloaded units is on the device where it is used, and back on the host in the end;
/// - buffers are allocated before, and freed once after, all uses;
/// - what one lane makes and another uses is ordered by `needs`;
/// - sends and receives pair up, the ranks of a group agree on their collectives, and no cycle of waits
///   exists. A send does not wait for its receiver; receives and collectives wait for their partners.
/// Throws ProgramError for the first fault found.
CheckResult check_programs(std::span<const StepProgram> all_ranks);

/// A group of a rank. Its list may be shared by several ranks, and must live until the check has returned.
struct GroupView {
  std::string_view name;
  std::span<const int> ranks;  ///< ascending
};

/// Views of `groups`, which must live as long.
std::vector<GroupView> views_of(const std::vector<ProgramGroup>& groups);

/// The groups of a rank, in the order of StepProgram::groups.
using GroupsOfRank = std::function<std::vector<GroupView>(int rank)>;

struct SymmetryProof {
  int world_size = 1;
  std::size_t groups = 0;  ///< distinct ones, over all ranks
  int64_t peak_bytes = 0;  ///< of every rank
};

/// Proves the job in which each rank runs the operations of `program`, over its own groups. What
/// check_programs proves of all ranks follows from one of them and from this:
/// - each rank has the same number of groups, of the same names and sizes, and is in each of its own; all
///   members of a group have the very same group. So its members issue the same collectives in the same
///   order;
/// - needs point backward. So the ranks can finish the list operation by operation, each collective meeting
///   itself on the other ranks: no cycle of waits can exist.
/// There must be no messages to single peers. Throws ProgramError for the first fault found.
SymmetryProof check_symmetric(const StepProgram& program, int world_size, const GroupsOfRank& groups_of);

/// The same operations on another rank.
StepProgram same_program_on(int rank, std::vector<ProgramGroup> groups, const StepProgram& program);

}  // namespace stepforge
