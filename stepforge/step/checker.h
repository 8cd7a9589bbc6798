// SPDX-License-Identifier: Apache-2.0
// Proves the step programs of all ranks sound before anything runs, without tensors and communication.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// A program that is not sound. The text names the rank, the operation and the reason.
class ProgramError : public Error {
 public:
  /// `operation` is the number of operations of the program if the fault is that something never happens.
  ProgramError(const StepProgram& program, std::size_t operation, const std::string& reason);

  int rank() const { return rank_; }
  std::size_t operation() const { return operation_; }

 private:
  int rank_;
  std::size_t operation_;
};

struct CheckResult {
  std::vector<int64_t> peak_bytes;  ///< of each rank: peak of live bytes (MemoryAccount)
};

/// `all_ranks[r]` is the program of rank r. It proves the following; each rule is a function in
/// step/check_rules.h.
/// - Indices, lanes and fields are sound, and `needs` point backward.
/// - With several ranks, the labels of the step are counted before the first loss, and the loss is reduced
///   after the last one.
/// - The computation of every block finds its input, graph and gradient, and uses each as often as it must.
/// - Units that are not resident are gathered when used.
/// - The contributions of all blocks and micro-batches to the gradient of each trainable unit are summed
///   exactly once and, if the unit has groups, reduced exactly once; then they are part of the norm, checked
///   to be finite, and used in exactly one update.
/// - The state of offloaded units is on the device where it is used, and back on the host at the end.
/// - Buffers are allocated before all uses, and freed once after them.
/// - An operation that uses a result of another lane is ordered after it by `needs`.
/// - Sends and receives pair up, the ranks of a group agree on their collectives, and there is no cycle of
///   waits. A send does not wait for its receiver; receives and collectives wait for their partners.
/// Throws ProgramError for the first fault found.
CheckResult check_programs(std::span<const StepProgram> all_ranks);

/// A group of a rank. The list of ranks may be shared by several views, and must live until the check
/// returns.
struct GroupView {
  std::string_view name;
  std::span<const int> ranks;  ///< ascending
};

/// `groups` must outlive the views.
std::vector<GroupView> views_of(const std::vector<RankGroup>& groups);

/// The groups of a rank, in the order of StepProgram::groups.
using GroupsOfRank = std::function<std::vector<GroupView>(int rank)>;

struct SymmetryProof {
  int world_size = 1;
  std::size_t groups = 0;  ///< distinct ones, over all ranks
  int64_t peak_bytes = 0;  ///< of every rank
};

/// Proves a job in which every rank runs the operations of `program` over its own groups. What check_programs
/// proves for all ranks follows from the proof for one of them and from these rules:
/// - Each rank has the same number of groups, with the same names and sizes, and is a member of each of them.
///   All members of a group have the same list of members. So they issue the same collectives in the same
///   order.
/// - `needs` point backward. So the ranks can finish the list operation by operation, each collective
///   together with itself on the other ranks, and no cycle of waits can exist.
/// There must be no messages to single peers. Throws ProgramError for the first fault found.
SymmetryProof check_symmetric(const StepProgram& program, int world_size, const GroupsOfRank& groups_of);

}  // namespace stepforge
