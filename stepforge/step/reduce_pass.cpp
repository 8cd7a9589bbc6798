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

/// The time in which a unit accumulates one gradient. Indices of operations.
struct Span {
  int unit = 0;
  std::size_t first = 0;  ///< its first contribution
  std::size_t last = 0;   ///< its last contribution, stash or addition
  bool reduced = true;    ///< otherwise it ends in a stash
  int number = 0;         ///< among the reduced spans of the unit
  bool is_final = false;  ///< the last span of the unit
};

/// The spans of every unit, in list order. A gradient ends with each stash, with each micro-batch if it is
/// reduced then, and with the step.
class Spans {
 public:
  Spans(const StepProgram& program, bool each_micro_batch) : units_(program.units.size()) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& operation = program.operations[i];
      const bool stash = operation.kind == OpKind::stash_gradient;
      if (stash || operation.kind == OpKind::add_gradient || operation.kind == OpKind::tie_leaf)
        extend(operation.unit, i, !stash);
      if (!has_trait(operation.kind, kContributes)) continue;
      for (const int unit : element(program.blocks, operation.block).units) {
        Unit& at = element(units_, unit);
        const bool each = each_micro_batch && element(program.units, unit).reduces();
        if (each && operation.micro_batch != at.micro_batch) at.open = false;
        at.micro_batch = operation.micro_batch;
        extend(unit, i, true);
      }
    }
    for (Unit& unit : units_)
      if (!unit.spans.empty()) unit.spans.back().is_final = true;
  }

  const std::vector<Span>& of(std::size_t unit) const { return units_[unit].spans; }

 private:
  struct Unit {
    std::vector<Span> spans;
    bool open = false;  ///< the last span may continue
    int micro_batch = -1;
  };

  /// The operation belongs to the open span of the unit, or begins one.
  void extend(int unit, std::size_t operation, bool reduced) {
    Unit& at = element(units_, unit);
    if (!at.open) {
      const bool counted = !at.spans.empty() && at.spans.back().reduced;
      const int number = at.spans.empty() ? 0 : at.spans.back().number + (counted ? 1 : 0);
      at.spans.push_back({.unit = unit, .first = operation, .number = number});
    }
    at.spans.back().last = operation;
    at.spans.back().reduced = reduced;
    at.open = reduced;
  }

  std::vector<Unit> units_;
};

class Reductions {
 public:
  Reductions(StepProgram& program, const ReducePolicy& policy)
      : program_(program),
        policy_(policy),
        starts_(program.operations.size()),
        ends_(program.operations.size()) {
    const Spans spans(program, policy.each_micro_batch);
    for (std::size_t u = 0; u < program.units.size(); ++u) {
      const ProgramUnit& unit = program.units[u];
      if (!unit.trainable || (!unit.reduces() && unit.replica_group < 0)) continue;
      for (const Span& span : spans.of(u)) {
        if (unit.reduces()) starts_[span.first].push_back(span);
        if (!span.reduced) continue;
        ends_[span.last].push_back(span);
        last_end_ = std::max(last_end_, span.last);
      }
    }
  }

  void write() {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      place_ = i;
      for (const Span& span : starts_[i]) start(span);
      place_ = i + 1;
      for (const Span& span : ends_[i]) end(span);
      if (i == last_end_) finish();
    }
    insert_operations(program_.operations, std::move(insertions_));
    link_needs();
  }

 private:
  const ProgramUnit& unit(int index) const { return element(program_.units, index); }

  Operation& insert(OpKind kind, int unit_index, int group = -1) {
    return insertions_.emplace_back(Insertion{place_, make_operation(kind, unit_index, group)}).operation;
  }

  /// A unit has one whole gradient at a time.
  void start(const Span& span) {
    while (std::ranges::find(waiting_, span.unit, &Span::unit) != waiting_.end()) wait_for_oldest();
    insert(OpKind::start_gradient, span.unit);
  }

  void end(const Span& span) {
    if (!unit(span.unit).reduces()) {
      all_reduce(span.unit);
      return;
    }
    while (waiting_.size() >= static_cast<std::size_t>(policy_.in_flight)) wait_for_oldest();
    insert(OpKind::reduce_start, span.unit, unit(span.unit).shard_group).accumulate = span.number > 0;
    waiting_.push_back(span);
  }

  void wait_for_oldest() {
    const Span span = waiting_.front();
    waiting_.pop_front();
    insert(OpKind::reduce_wait, span.unit);
    if (span.is_final && unit(span.unit).replica_group >= 0) all_reduce(span.unit);
  }

  void all_reduce(int unit_index) {
    insert(OpKind::all_reduce_start, unit_index, unit(unit_index).replica_group);
    all_reduced_.push_back(unit_index);
  }

  void finish() {
    while (!waiting_.empty()) wait_for_oldest();
    for (const int unit_index : all_reduced_) insert(OpKind::all_reduce_wait, unit_index);
  }

  /// A reduction needs the last computation before it, so that it does not run ahead of the list.
  void link_needs() {
    int last_computation = -1;
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      Operation& operation = program_.operations[i];
      if (operation.lane == Lane::reduce)
        operation.needs.push_back(last_computation);
      else if (operation.lane == Lane::compute)
        last_computation = static_cast<int>(i);
    }
  }

  StepProgram& program_;
  const ReducePolicy& policy_;
  std::vector<std::vector<Span>> starts_;  // by the operation that they start before
  std::vector<std::vector<Span>> ends_;    // by the operation that they end after
  std::size_t last_end_ = 0;
  std::deque<Span> waiting_;  // for their reduce_wait
  std::vector<int> all_reduced_;
  std::vector<Insertion> insertions_;
  std::size_t place_ = 0;  // the operation to insert before
};

}  // namespace

void reduce_pass(StepProgram& program, const ReducePolicy& policy) {
  if (policy.in_flight < 1)
    throw UsageError(format("reductions in flight must be 1 or more, not {}", policy.in_flight));
  Reductions(program, policy).write();
}

}  // namespace stepforge
