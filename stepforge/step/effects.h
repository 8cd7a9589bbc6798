// SPDX-License-Identifier: Apache-2.0
// The effects of the operations of one program on its resources.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "stepforge/step/program.h"
#include "stepforge/step/resources.h"

namespace stepforge {

/// One resource of a program.
struct Instance {
  Resource resource = Resource::batch;
  int owner = 0;   ///< value, block or unit; 0 for others
  int number = 0;  ///< micro-batch or level; 0 for others
};

struct InstanceEffect {
  Effect effect;
  Instance instance;
};

/// The accesses to one resource so far that a later one may have to wait for. Lanes run in list order, so of each lane
/// only the last one counts.
class AccessOrder {
 public:
  static constexpr int kNone = -1;

  AccessOrder() { users_.fill(kNone); }

  /// The operation of the last exclusive access; kNone if there was none.
  int last() const { return last_; }

  /// Calls visit(operation) for each earlier operation that must have finished first, and adds the access of `operation`.
  template <typename Visit>
  void add(int operation, Lane lane, bool exclusive, const Visit& visit) {
    if (last_ != kNone) visit(last_);
    if (!exclusive) {
      users_.at(static_cast<std::size_t>(lane)) = operation;
      return;
    }
    for (const int user : users_)
      if (user != kNone) visit(user);
    users_.fill(kNone);
    last_ = operation;
  }

 private:
  int last_ = kNone;
  std::array<int, kLanes> users_ = {};  // since the last exclusive access
};

/// The resources of a program, and what its operations do to them.
class ProgramEffects {
 public:
  /// `program` must outlive this, and check_structure() must accept it.
  explicit ProgramEffects(const StepProgram& program);

  /// In the order of the table. An operation without a unit, inputs or outputs has no effects on these. Valid until the
  /// next call.
  const std::vector<InstanceEffect>& of(const Operation& operation);
  /// The same without effects on the units of a block or on all units.
  const std::vector<InstanceEffect>& own(const Operation& operation);

  std::size_t count() const { return count_; }
  std::size_t index(const Instance& instance) const;
  /// In the order of their indices.
  std::vector<Instance> all() const;

  /// It exists before, during and after the step: a resident unit, or state that is not offloaded.
  bool is_persistent(const Instance& instance) const;
  /// Whether the access must be ordered with all others; if not, it is ordered with exclusive ones only. `take` of persistent
  /// state just reads it.
  bool is_exclusive(Access access, const Instance& instance) const {
    return access_info(access).exclusive && !(access == Access::take && is_persistent(instance));
  }
  /// Whether it must exist after the step.
  bool is_required(const Instance& instance) const;
  /// Whether it cannot exist without a buffer: the copies of a unit on the device. Of other resources, programs leave
  /// out the buffers that they do not need.
  bool needs_memory(const Instance& instance) const;
  /// "the gradient of unit layers.0", "the graph of block layers.0 on micro-batch 1"
  std::string noun(const Instance& instance) const;

 private:
  std::size_t owners(OwnerKind kind) const;
  std::size_t numbers(OwnerKind kind) const;
  bool applies(When when, const Operation& operation) const;
  bool applies(When when, int unit) const;
  void add(const Effect& effect, const Operation& operation);
  Instance own_instance(Resource resource, const Operation& operation) const;

  const StepProgram& program_;
  std::array<std::size_t, resource_table::kRows.size()> first_ = {};  // index of the first instance of each
  std::size_t count_ = 0;
  std::size_t levels_ = 0;
  std::vector<bool> tied_by_leaf_;  // of each unit
  std::vector<InstanceEffect> effects_;
  bool has_label_group_;
  bool has_stages_;
  bool has_loss_group_;
  bool has_tensor_group_;
};

}  // namespace stepforge
