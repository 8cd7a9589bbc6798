// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// One residency of a unit in a slot, from its first use to its last (indices of operations).
struct Residency {
  int unit = 0;
  std::size_t first_use = 0;
  std::size_t last_use = 0;
  std::size_t earliest_start = 0;  ///< right after the previous residency of the unit
};

/// All residencies in order of their first use: one for each unit, or one for each run of its uses that no
/// computation of another block interrupts.
std::vector<Residency> find_residencies(const StepProgram& program, const GatherPolicy& policy) {
  using Reshard = GatherPolicy::Reshard;
  const auto stays_gathered = [&](int unit) {
    return policy.reshard == Reshard::never || (policy.reshard == Reshard::every_n && unit % policy.n != 0);
  };
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<Residency> residencies;
  std::vector<std::size_t> latest(program.units.size(), kNone);  // of each unit: its latest residency
  std::vector<std::size_t> last_computation(program.units.size(),
                                            0);  // of each unit: the last one that used it
  std::size_t computation = 0;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (!has_trait(operation.kind, kUsesUnits)) continue;
    ++computation;
    if (!reads_weights(program, operation)) continue;
    for (const int unit : program.blocks[static_cast<std::size_t>(operation.block)].units) {
      const auto u = static_cast<std::size_t>(unit);
      if (program.units[u].resident) continue;
      const bool goes_on =
          latest[u] != kNone && (stays_gathered(unit) || last_computation[u] + 1 == computation);
      if (!goes_on) {
        const std::size_t earliest = latest[u] == kNone ? 0 : residencies[latest[u]].last_use + 1;
        latest[u] = residencies.size();
        residencies.push_back({unit, i, i, earliest});
      }
      residencies[latest[u]].last_use = i;
      last_computation[u] = computation;
    }
  }
  return residencies;
}

Operation unit_operation(const StepProgram& program, OpKind kind, int unit) {
  Operation operation;
  operation.kind = kind;
  operation.unit = unit;
  operation.lane = lane_of(kind);
  if (kind == OpKind::gather_start)
    operation.group = program.units[static_cast<std::size_t>(unit)].shard_group;
  return operation;
}

/// Where the gather of each residency starts: with the first use at the latest, never before the previous
/// residency of the unit has ended.
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
      const auto unit = static_cast<std::size_t>(find_unit(list.unit));
      add_list(lists_[unit].forward, list.forward);
      add_list(lists_[unit].backward, list.backward);
    }
  }

  std::vector<std::size_t> find() {
    for (std::size_t k = 0; k < residencies_.size(); ++k) start_within_distance(k);
    int previous = -1;  // the block that computed last
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      const Operation& operation = program_.operations[i];
      if (has_trait(operation.kind, kUsesUnits)) {
        start_listed(i, previous);
        previous = operation.block;
      }
    }
    return std::move(starts_);
  }

 private:
  struct Lists {
    std::vector<int> forward;
    std::vector<int> backward;
  };

  int find_unit(const std::string& name) const {
    const auto named = [&](const ProgramUnit& unit) { return unit.name == name; };
    const auto found = std::find_if(program_.units.begin(), program_.units.end(), named);
    if (found != program_.units.end()) return static_cast<int>(found - program_.units.begin());
    std::vector<std::string> names;
    for (const ProgramUnit& unit : program_.units) names.push_back(unit.name);
    throw UsageError(format("a prefetch list names the unit \"{}\", which the model does not have; it has {}",
                            name, join(names, ", ")));
  }

  void add_list(std::vector<int>& list, const std::vector<std::string>& names) const {
    for (const std::string& name : names) list.push_back(find_unit(name));
  }

  static bool is_backward(OpKind kind) { return has_trait(kind, kRunsBackward); }
  static bool is_forward(OpKind kind) { return !is_backward(kind) || kind == OpKind::loss_forward_backward; }

  void start_by(std::size_t residency, std::size_t operation) {
    const std::size_t earliest = std::max(operation, residencies_[residency].earliest_start);
    starts_[residency] = std::min(starts_[residency], earliest);
  }

  /// The next residencies start with the first use of this one.
  void start_within_distance(std::size_t k) {
    const Residency& residency = residencies_[k];
    const Lists& lists = lists_[static_cast<std::size_t>(residency.unit)];
    const bool backward = is_backward(program_.operations[residency.first_use].kind);
    if (!(backward ? lists.backward : lists.forward).empty()) return;
    const auto distance = static_cast<std::size_t>(backward ? policy_.backward : policy_.forward);
    for (std::size_t next = k + 1; next < residencies_.size() && next <= k + distance; ++next)
      start_by(next, residency.first_use);
  }

  /// A run of uses of a unit begins at operation i: its list starts.
  void start_listed(std::size_t i, int previous_block) {
    const Operation& operation = program_.operations[i];
    for (const int unit : program_.blocks[static_cast<std::size_t>(operation.block)].units) {
      if (operation.block == previous_block) continue;
      const Lists& lists = lists_[static_cast<std::size_t>(unit)];
      for (const int listed : lists.forward)
        if (is_forward(operation.kind)) start_next_residency(listed, i);
      for (const int listed : lists.backward)
        if (is_backward(operation.kind)) start_next_residency(listed, i);
    }
  }

  /// Nothing starts if the unit is still gathered then, or no longer used.
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

/// The order of operations that are inserted at one place.
enum class InsertOrder : uint8_t { release, start, wait, prefetched_start };

struct Placed {
  std::size_t before = 0;
  InsertOrder rank = InsertOrder::release;
  Operation operation;
};

std::vector<Placed> place(const StepProgram& program, const std::vector<Residency>& residencies,
                          const std::vector<std::size_t>& starts) {
  std::vector<Placed> placed;
  for (std::size_t k = 0; k < residencies.size(); ++k) {
    const Residency& residency = residencies[k];
    const InsertOrder rank =
        starts[k] < residency.first_use ? InsertOrder::prefetched_start : InsertOrder::start;
    placed.push_back({starts[k], rank, unit_operation(program, OpKind::gather_start, residency.unit)});
    placed.push_back({residency.first_use, InsertOrder::wait,
                      unit_operation(program, OpKind::gather_wait, residency.unit)});
    placed.push_back({residency.last_use + 1, InsertOrder::release,
                      unit_operation(program, OpKind::release, residency.unit)});
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(a.before, a.rank) < std::tuple(b.before, b.rank);
  });
  return placed;
}

/// A wait needs its start. A start needs the last release before it, so that gathers cannot run further ahead
/// of the compute lane than in the list.
void link_needs(std::vector<Operation>& operations, std::size_t units) {
  std::vector<int> start_of(units, -1);
  int last_release = -1;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& operation = operations[i];
    if (operation.kind == OpKind::release) {
      last_release = static_cast<int>(i);
    } else if (operation.kind == OpKind::gather_start) {
      start_of[static_cast<std::size_t>(operation.unit)] = static_cast<int>(i);
      if (last_release >= 0) operation.needs.push_back(last_release);
    } else if (operation.kind == OpKind::gather_wait) {
      operation.needs.push_back(start_of[static_cast<std::size_t>(operation.unit)]);
    }
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
  std::vector<Insertion> insertions;
  for (Placed& placed : place(program, residencies, starts))
    insertions.push_back({placed.before, std::move(placed.operation)});
  insert_operations(program.operations, insertions);
  link_needs(program.operations, program.units.size());
}

}  // namespace stepforge
