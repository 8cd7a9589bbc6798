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
///   waits, where sends, receives and collectives all wait for their partners.
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
  std::size_t groups = 0;            ///< distinct ones, over all ranks
  int64_t peak_bytes = 0;            ///< of every rank; the largest of all classes
  std::vector<int64_t> class_peaks;  ///< of each class
};

/// Proves a job of any size by classes of ranks: all ranks of a class run the same operations, each over its own
/// groups. `classes` holds one program of each: those of one pipeline, in the order of its stages; without a
/// pipeline there is one class. What check_programs proves for all ranks follows from the proof for these programs
/// and from these rules:
/// - Each rank has the groups that the program of its class has, with the same names and sizes, and is a member of
///   each of them. All members of a group have the same list of members. A group is either within one class, or
///   has equally many members of each of its classes, in the same order for all groups of that name.
/// - So the ranks of a class can run in step: a collective within a class finishes as soon as one of its members
///   comes, and messages and collectives between classes are those between the programs in `classes`, which
///   check_programs' rules prove to agree and to have no cycle of waits.
/// `class_of` is the class of a rank. Throws ProgramError for the first fault found.
SymmetryProof check_classes(std::span<const StepProgram> classes, int world_size,
                            const std::function<int(int rank)>& class_of, const GroupsOfRank& groups_of);

}  // namespace stepforge
