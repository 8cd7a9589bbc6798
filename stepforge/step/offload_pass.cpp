// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

constexpr StateParts kWeights{.weights = true};
constexpr StateParts kGradients{.gradients = true};
constexpr StateParts kAll{.weights = true, .gradients = true, .optimizer = true};
constexpr StateParts kUpdated{.weights = true, .optimizer = true};

/// Writes a new list, with the copies between the operations.
class Copies {
 public:
  Copies(StepProgram& program, const OffloadPolicy& policy)
      : program_(program),
        policy_(policy),
        is_all_reduced_next_(program.operations.size(), false),
        under_way_(program.units.size(), kNone) {
    std::vector<bool> all_reduced(program.units.size(), false);
    for (std::size_t i = program.operations.size(); i-- > 0;) {
      const Operation& operation = program.operations[i];
      if (operation.lane == Lane::reduce) {
        is_all_reduced_next_[i] = all_reduced[unit_of(operation)];
        all_reduced[unit_of(operation)] = operation.kind == OpKind::all_reduce_start;
      }
    }
    for (const Operation& operation : program.operations)
      if (operation.kind == OpKind::update && is_offloaded(operation)) updated_.push_back(operation.unit);
  }

  void write() {
    const std::vector<Operation> list = std::move(program_.operations);
    std::vector<int> moved_to;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Operation operation = list[i];
      for (int& needed : operation.needs) needed = moved_to[static_cast<std::size_t>(needed)];
      precede(operation);
      moved_to.push_back(add(operation));
      follow(operation, is_all_reduced_next_[i]);
    }
    program_.operations = std::move(result_);
  }

 private:
  static constexpr int kNone = -1;

  struct Reduced {
    int unit = 0;
    int operation = 0;  ///< the one that has reduced its gradient
  };

  static std::size_t unit_of(const Operation& operation) { return static_cast<std::size_t>(operation.unit); }
  bool is_offloaded(const Operation& operation) const {
    return operation.unit >= 0 && program_.units[unit_of(operation)].offloaded;
  }
  int last() const { return static_cast<int>(result_.size()) - 1; }

  /// Returns its index.
  int add(Operation operation) {
    const bool is_computation = operation.lane == Lane::compute;
    result_.push_back(std::move(operation));
    last_computation_ = is_computation ? last() : last_computation_;
    return last();
  }

  int add_copy(OpKind kind, int unit, const StateParts& parts, const std::vector<int>& needs) {
    Operation copy;
    copy.kind = kind;
    copy.lane = lane_of(kind);
    copy.unit = unit;
    copy.parts = parts;
    copy.needs = needs;
    return under_way_[static_cast<std::size_t>(unit)] = add(std::move(copy));
  }

  /// Adds what must come before the operation.
  void precede(Operation& operation) {
    switch (operation.kind) {
      case OpKind::gather_start:
        if (is_offloaded(operation)) {
          operation.needs.push_back(
              add_copy(OpKind::reload_start, operation.unit, kWeights, operation.needs));
        }
        return;
      case OpKind::reduce_start:
        if (is_offloaded(operation) && operation.accumulate) {
          operation.needs.push_back(
              add_copy(OpKind::reload_start, operation.unit, kGradients, operation.needs));
        }
        return;
      case OpKind::gradient_norm:
        for (const int unit : updated_)
          add_copy(OpKind::offload_wait, unit, {}, {under_way_[static_cast<std::size_t>(unit)]});
        return;
      case OpKind::update:
        if (is_offloaded(operation)) {
          reload_for_updates();
          add_copy(OpKind::reload_wait, operation.unit, {}, {under_way_[unit_of(operation)]});
        }
        return;
      default:
        return;
    }
  }

  /// Reloads the state of the unit that is updated next, and of those behind it within the prefetch distance.
  void reload_for_updates() {
    const std::size_t end =
        std::min(updated_.size(), updates_ + 1 + static_cast<std::size_t>(policy_.prefetch));
    for (; reloaded_ < end; ++reloaded_)
      add_copy(OpKind::reload_start, updated_[reloaded_], kAll, {last_computation_});
    ++updates_;
  }

  /// Adds what can begin when the operation, which has just been added, has run.
  void follow(const Operation& operation, bool is_all_reduced_next) {
    if (operation.kind == OpKind::update && is_offloaded(operation))
      add_copy(OpKind::offload_start, operation.unit, kUpdated, {last()});
    else if (operation.lane == Lane::reduce && is_offloaded(operation) && !is_all_reduced_next)
      reduced_.push_back({operation.unit, last()});
    else if (operation.kind == OpKind::reduce_wait || operation.kind == OpKind::all_reduce_wait)
      offload_gradients(operation.needs.back());
  }

  /// Offloads the gradients of all units whose reduction has ended when the compute lane has waited for
  /// `reduction`. So no copy waits for a reduction while a reload stands behind it.
  void offload_gradients(int reduction) {
    while (!reduced_.empty() && reduced_.front().operation <= reduction) {
      const Reduced done = reduced_.front();
      reduced_.pop_front();
      add_copy(OpKind::offload_start, done.unit, kGradients, {done.operation});
    }
  }

  StepProgram& program_;
  const OffloadPolicy& policy_;
  std::vector<bool> is_all_reduced_next_;  // of each reduction: its gradient is summed over the replicas then
  std::vector<int> updated_;               // units, in the order of their updates
  std::size_t updates_ = 0;                // so far
  std::size_t reloaded_ = 0;               // of updated_
  std::deque<Reduced> reduced_;            // and not yet offloaded
  std::vector<int> under_way_;             // of each unit: its latest copy
  int last_computation_ = kNone;
  std::vector<Operation> result_;
};

}  // namespace

void offload_pass(StepProgram& program, const OffloadPolicy& policy) {
  if (policy.prefetch < 0) {
    throw UsageError(
        format("the prefetch distance of offloaded state must be 0 or more, not {}", policy.prefetch));
  }
  if (policy.state) Copies(program, policy).write();
}

}  // namespace stepforge
