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

/// Writes a new list of operations, with the copies between them.
class Copies {
 public:
  Copies(StepProgram& program, const OffloadPolicy& policy)
      : program_(program),
        policy_(policy),
        is_all_reduced_next_(program.operations.size(), false),
        reductions_(program.units.size(), kNone) {
    std::vector<bool> all_reduced(program.units.size(), false);
    for (std::size_t i = program.operations.size(); i-- > 0;) {
      const Operation& operation = program.operations[i];
      if (operation.lane == Lane::reduce) {
        is_all_reduced_next_[i] = element(all_reduced, operation.unit);
        element(all_reduced, operation.unit) = operation.kind == OpKind::all_reduce_start;
      }
    }
    for (const Operation& operation : program.operations)
      if (operation.kind == OpKind::update && is_offloaded(operation)) updated_.push_back(operation.unit);
  }

  void write() {
    const std::vector<Operation> list = std::move(program_.operations);
    std::vector<int> new_index;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Operation operation = list[i];
      for (int& needed : operation.needs) needed = element(new_index, needed);
      precede(operation);
      new_index.push_back(add(operation));
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

  bool is_offloaded(const Operation& operation) const {
    return operation.unit >= 0 && element(program_.units, operation.unit).offloaded;
  }
  int last() const { return static_cast<int>(result_.size()) - 1; }

  /// Returns its index.
  int add(Operation operation) {
    const bool is_computation = operation.lane == Lane::compute;
    result_.push_back(std::move(operation));
    last_computation_ = is_computation ? last() : last_computation_;
    return last();
  }

  void add_copy(OpKind kind, int unit, const StateParts& parts, const std::vector<int>& needs = {}) {
    Operation copy = make_operation(kind, unit);
    copy.parts = parts;
    copy.needs = needs;
    add(std::move(copy));
  }

  /// Adds the copies that must come before the operation.
  void precede(Operation& operation) {
    // The reload starts no earlier than the operation that it is for could.
    const auto reload = [&](const StateParts& parts) {
      add_copy(OpKind::reload_start, operation.unit, parts, operation.needs);
    };
    // Both read reduced gradients, on the host.
    const bool needs_host = operation.kind == OpKind::tie_reduce || operation.kind == OpKind::gradient_norm;
    if (needs_host && !std::exchange(gradients_on_host_, true))
      for (const int unit : updated_) add_copy(OpKind::offload_wait, unit, {});
    if (!is_offloaded(operation)) return;
    if (operation.kind == OpKind::gather_start) reload(kWeights);
    if (operation.kind == OpKind::reduce_start && operation.accumulate) reload(kGradients);
    if (operation.kind == OpKind::update) {
      reload_for_updates();
      add_copy(OpKind::reload_wait, operation.unit, {});
    }
  }

  /// Reloads the state of the unit that is updated next, and of those after it within the prefetch distance.
  void reload_for_updates() {
    const std::size_t end =
        std::min(updated_.size(), updates_ + 1 + static_cast<std::size_t>(policy_.prefetch));
    for (; reloaded_ < end; ++reloaded_)
      add_copy(OpKind::reload_start, updated_[reloaded_], kAll, {last_computation_});
    ++updates_;
  }

  /// Adds the copies that can start after the operation, which has just been added.
  void follow(const Operation& operation, bool is_all_reduced_next) {
    if (operation.kind == OpKind::update && is_offloaded(operation))
      add_copy(OpKind::offload_start, operation.unit, kUpdated);
    if (operation.lane == Lane::reduce) element(reductions_, operation.unit) = last();
    if (operation.lane == Lane::reduce && is_offloaded(operation) && !is_all_reduced_next)
      reduced_.push_back({operation.unit, last()});
    else if (operation.kind == OpKind::reduce_wait || operation.kind == OpKind::all_reduce_wait)
      offload_gradients(element(reductions_, operation.unit));
  }

  /// Offloads the gradients of all units whose reduction has ended once the compute lane has waited for
  /// `reduction`. So no copy in the lane waits for a reduction and delays the reloads after it.
  void offload_gradients(int reduction) {
    while (!reduced_.empty() && reduced_.front().operation <= reduction) {
      add_copy(OpKind::offload_start, reduced_.front().unit, kGradients);
      reduced_.pop_front();
    }
  }

  StepProgram& program_;
  const OffloadPolicy& policy_;
  std::vector<bool> is_all_reduced_next_;  // of each reduction: an all-reduce of the same gradient follows
  std::vector<int> updated_;               // units, in the order of their updates
  bool gradients_on_host_ = false;         // the compute lane has waited for their copies
  std::size_t updates_ = 0;                // number of updates so far
  std::size_t reloaded_ = 0;               // number of updated_ whose reload has been added
  std::deque<Reduced> reduced_;            // gradients that are not offloaded yet
  std::vector<int> reductions_;            // of each unit: its latest one
  int last_computation_ = kNone;
  std::vector<Operation> result_;
};

}  // namespace

void offload_pass(StepProgram& program, const OffloadPolicy& policy) {
  if (policy.prefetch < 0) {
    throw UsageError(
        format("the prefetch distance of offloaded state must be 0 or more, not {}", policy.prefetch));
  }
  if (std::ranges::any_of(program.units, &ProgramUnit::offloaded)) Copies(program, policy).write();
}

}  // namespace stepforge
