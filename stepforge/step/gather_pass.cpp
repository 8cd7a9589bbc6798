// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// The time that a unit stays in its slot, from its first use to its last. Indices of operations.
struct Residency {
  int unit = 0;
  std::size_t first_use = 0;
  std::size_t last_use = 0;
  std::size_t earliest_start = 0;  ///< right after the previous residency of the unit
};

/// All residencies in order of their first use. If a unit stays gathered, it has one; otherwise one for each
/// run of uses that no computation of another block interrupts.
std::vector<Residency> find_residencies(const StepProgram& program, const GatherPolicy& policy) {
  const bool in_pipeline = find_group(program.groups, kPipelineGroup) >= 0;
  const auto stays_gathered = [&](int unit) {
    const std::string& name = element(program.units, unit).name;
    if (std::ranges::count(policy.released, name) > 0) return false;
    if (std::ranges::count(policy.kept, name) > 0) return true;
    switch (policy.reshard) {
      case ReshardMode::by_default:
        return in_pipeline;
      case ReshardMode::always:
        return false;
      case ReshardMode::never:
        return true;
      case ReshardMode::every_n:
        return unit % policy.n != 0;
    }
    return false;
  };
  struct Latest {
    int residency = -1;
    int computation = 0;  // the last one that used the unit
  };
  std::vector<Residency> residencies;
  std::vector<Latest> latest(program.units.size());
  int computation = 0;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (!has_trait(operation.kind, kUsesUnits)) continue;
    ++computation;
    if (!reads_weights(program, operation)) continue;
    for (const int unit : element(program.blocks, operation.block).units) {
      if (element(program.units, unit).resident) continue;
      auto& [residency, last_computation] = element(latest, unit);
      if (residency < 0 || (!stays_gathered(unit) && last_computation + 1 != computation)) {
        const std::size_t earliest = residency < 0 ? 0 : element(residencies, residency).last_use + 1;
        residency = static_cast<int>(residencies.size());
        residencies.push_back({unit, i, i, earliest});
      }
      element(residencies, residency).last_use = i;
      last_computation = computation;
    }
  }
  return residencies;
}

/// Decides before which operation the gather of each residency starts: at the latest before its first use,
/// and never before the previous residency of the unit has ended.
class GatherScheduler {
 public:
  GatherScheduler(const StepProgram& program, const std::vector<Residency>& residencies,
                  const PrefetchPolicy& policy)
      : program_(program),
        residencies_(residencies),
        policy_(policy),
        lists_(program.units.size()),
        residencies_of_(program.units.size()) {
    for (std::size_t k = 0; k < residencies.size(); ++k) {
      starts_.push_back(residencies[k].first_use);
      element(residencies_of_, residencies[k].unit).push_back(k);
    }
    for (const PrefetchList& list : policy.lists) {
      Lists& lists = element(lists_, find_unit(list.unit));
      for (const std::string& name : list.forward) lists.forward.push_back(find_unit(name));
      for (const std::string& name : list.backward) lists.backward.push_back(find_unit(name));
    }
  }

  std::vector<std::size_t> find() {
    for (std::size_t k = 0; k < residencies_.size(); ++k) start_within_distance(k);
    int previous = -1;  // the block that computed last
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      const Operation& operation = program_.operations[i];
      if (!has_trait(operation.kind, kUsesUnits)) continue;
      if (operation.block != previous) start_listed(i);
      previous = operation.block;
    }
    return std::move(starts_);
  }

 private:
  struct Lists {
    std::vector<int> forward;
    std::vector<int> backward;
  };

  int find_unit(const std::string& name) const {
    const auto found = std::ranges::find(program_.units, name, &ProgramUnit::name);
    if (found != program_.units.end()) return static_cast<int>(found - program_.units.begin());
    std::vector<std::string> names;
    for (const ProgramUnit& unit : program_.units) names.push_back(unit.name);
    throw UsageError(format("a prefetch list names the unit \"{}\", which the model does not have; it has {}",
                            name, join(names, ", ")));
  }

  static bool is_backward(OpKind kind) { return has_trait(kind, kRunsBackward); }
  static bool is_forward(OpKind kind) { return !is_backward(kind) || kind == OpKind::loss_forward_backward; }

  void start_by(std::size_t residency, std::size_t operation) {
    const std::size_t earliest = std::max(operation, residencies_[residency].earliest_start);
    starts_[residency] = std::min(starts_[residency], earliest);
  }

  /// The gathers of the next residencies start with the first use of this one. Units that one computation is the first
  /// to use count as one.
  void start_within_distance(std::size_t k) {
    const Residency& residency = residencies_[k];
    const Lists& lists = element(lists_, residency.unit);
    const bool backward = is_backward(program_.operations[residency.first_use].kind);
    if (!(backward ? lists.backward : lists.forward).empty()) return;
    int ahead = 0;
    for (std::size_t next = k + 1; next < residencies_.size(); ++next) {
      if (residencies_[next].first_use != residencies_[next - 1].first_use) ++ahead;
      if (ahead > (backward ? policy_.backward : policy_.forward)) return;
      start_by(next, residency.first_use);
    }
  }

  /// Operation i is the first of a run on its block: starts the gathers that the lists of its units name.
  void start_listed(std::size_t i) {
    const Operation& operation = program_.operations[i];
    for (const int unit : element(program_.blocks, operation.block).units) {
      const Lists& lists = element(lists_, unit);
      for (const int listed : lists.forward)
        if (is_forward(operation.kind)) start_next_residency(listed, i);
      for (const int listed : lists.backward)
        if (is_backward(operation.kind)) start_next_residency(listed, i);
    }
  }

  /// Does nothing if the unit is still gathered at that operation, or not used after it.
  void start_next_residency(int unit, std::size_t operation) {
    const std::vector<std::size_t>& own = element(residencies_of_, unit);
    const auto next = std::upper_bound(own.begin(), own.end(), operation, [&](std::size_t at, std::size_t k) {
      return at < residencies_[k].first_use;
    });
    if (next != own.end() && residencies_[*next].earliest_start <= operation) start_by(*next, operation);
  }

  const StepProgram& program_;
  const std::vector<Residency>& residencies_;
  const PrefetchPolicy& policy_;
  std::vector<Lists> lists_;                              // of each unit
  std::vector<std::vector<std::size_t>> residencies_of_;  // of each unit, in list order
  std::vector<std::size_t> starts_;
};

/// A start needs the last release before it, so that gathers cannot run further ahead of the compute lane than they do
/// in the list. One of codes also needs the last computation: it decodes into memory of its own, which the account
/// counts from where it is listed.
void link_needs(StepProgram& program, const GatherPolicy& policy) {
  int last_release = -1;
  int last_computation = -1;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    Operation& operation = program.operations[i];
    if (operation.kind == OpKind::release) last_release = static_cast<int>(i);
    if (has_trait(operation.kind, kUsesUnits)) last_computation = static_cast<int>(i);
    if (operation.kind != OpKind::gather_start) continue;
    const bool decodes = std::ranges::count(policy.released, element(program.units, operation.unit).name) > 0;
    const int last = decodes ? std::max(last_release, last_computation) : last_release;
    if (last >= 0) operation.needs.push_back(last);
  }
}

}  // namespace

void gather_pass(StepProgram& program, const GatherPolicy& policy) {
  if (const int least = std::min(policy.prefetch.forward, policy.prefetch.backward); least < 0)
    throw UsageError(format("the prefetch distance of gathers must be 0 or more, not {}", least));
  if (policy.n < 1)
    throw UsageError(format("resharding every n-th unit: n must be at least 1, not {}", policy.n));
  const std::vector<Residency> residencies = find_residencies(program, policy);
  const std::vector<std::size_t> starts = GatherScheduler(program, residencies, policy.prefetch).find();
  std::vector<Insertion> insertions;  // before one operation: releases, starts, waits, prefetched starts
  const auto insert_starts = [&](bool prefetched) {
    for (std::size_t k = 0; k < residencies.size(); ++k) {
      const auto& [unit, first_use, last_use, earliest_start] = residencies[k];
      if ((starts[k] < first_use) != prefetched) continue;
      const int group = element(program.units, unit).shard_group;
      insertions.push_back({starts[k], make_operation(OpKind::gather_start, unit, group)});
    }
  };
  for (const Residency& residency : residencies)
    insertions.push_back({residency.last_use + 1, make_operation(OpKind::release, residency.unit)});
  insert_starts(/*prefetched=*/false);
  for (const Residency& residency : residencies)
    insertions.push_back({residency.first_use, make_operation(OpKind::gather_wait, residency.unit)});
  insert_starts(/*prefetched=*/true);
  insert_operations(program.operations, std::move(insertions));
  link_needs(program, policy);
}

}  // namespace stepforge
