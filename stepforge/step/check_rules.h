// The checker's rules, one function each. They run in the order of this file: a later one relies on the
// earlier.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/step/checker.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Which operations have surely finished when another starts: those before it on its lane and those it
/// `needs`, and theirs in turn.
class HappensBefore {
 public:
  explicit HappensBefore(const StepProgram& program);

  /// Whether `first` has finished when `second` starts.
  bool operator()(std::size_t first, std::size_t second) const;

 private:
  static constexpr std::size_t kLanes = 5;
  std::vector<std::size_t> lane_;
  std::vector<int> place_;                         // in its lane
  std::vector<std::array<int, kLanes>> finished_;  // how many of each lane when it starts
};

/// One rank's program under proof.
struct CheckedProgram {
  const StepProgram& program;
  HappensBefore before;

  [[noreturn]] void fail(std::size_t operation, const std::string& reason) const {
    throw ProgramError(program, operation, reason);
  }
  /// "operation 3 (forward layers.0 m0)"
  std::string text(std::size_t operation) const;
  /// Fails at `second` unless `first` has surely finished by then.
  void require_order(std::size_t first, std::size_t second) const;
};

/// `consumer` uses what `producer` put into its buffer of this kind.
struct Use {
  std::size_t producer = 0;
  std::size_t consumer = 0;
  BufferKind kind = BufferKind::bundle;
};

/// `world_size` is the number of ranks.
void check_structure(const StepProgram& program, std::size_t world_size);

/// Inputs, graphs and gradients between blocks. Returns who uses what, for check_buffers.
std::vector<Use> check_dataflow(const CheckedProgram& checked);

void check_gathers(const CheckedProgram& checked);

void check_gradients(const CheckedProgram& checked);

/// The state of offloaded units is on the device where it is used there, and on the host afterwards.
void check_offload(const CheckedProgram& checked);

/// Labels are counted before the first loss, and the loss is reduced after the last.
void check_loss(const CheckedProgram& checked);

/// Returns the most bytes live at once when operations run in list order.
int64_t check_buffers(const CheckedProgram& checked, const std::vector<Use>& uses);

/// All rules above but the first: what is true of a rank whatever the others do. Returns the peak of live
/// bytes.
int64_t check_one(const StepProgram& program);

void check_messages(std::span<const StepProgram> all_ranks);

void check_collectives(std::span<const StepProgram> all_ranks);

void check_waits(std::span<const StepProgram> all_ranks);

/// Whether the operation is a step of a collective over its group.
bool is_collective(const Operation& operation);

/// "dp {0, 1}": equal for the same group on all its ranks.
std::string group_key(const ProgramGroup& group);

}  // namespace stepforge
