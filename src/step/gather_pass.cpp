#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/format.h"
#include "step/passes.h"

namespace stepforge {

namespace {

/// One stay of a unit in a slot, from its first use to its last (indices of operations).
struct Stay {
  int unit = 0;
  std::size_t first_use = 0;
  std::size_t last_use = 0;
  std::size_t earliest_start = 0;  ///< just behind the unit's previous stay
};

/// All stays in order of their first use: one for each unit, or one for each run of its uses with no other
/// block's computation between.
std::vector<Stay> find_stays(const StepProgram& program, const GatherPolicy& policy) {
  using Reshard = GatherPolicy::Reshard;
  const auto stays_gathered = [&](int unit) {
    return policy.reshard == Reshard::never || (policy.reshard == Reshard::every_n && unit % policy.n != 0);
  };
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<Stay> stays;
  std::vector<std::size_t> latest(program.units.size(), kNone);        // the unit's latest stay
  std::vector<std::size_t> last_computation(program.units.size(), 0);  // that used the unit
  std::size_t computation = 0;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (!uses_units(operation.kind)) {
      continue;
    }
    ++computation;
    for (const int unit : program.blocks[static_cast<std::size_t>(operation.block)].units) {
      const auto u = static_cast<std::size_t>(unit);
      if (program.units[u].resident) {
        continue;
      }
      const bool goes_on =
          latest[u] != kNone && (stays_gathered(unit) || last_computation[u] + 1 == computation);
      if (!goes_on) {
        const std::size_t earliest = latest[u] == kNone ? 0 : stays[latest[u]].last_use + 1;
        latest[u] = stays.size();
        stays.push_back({unit, i, i, earliest});
      }
      stays[latest[u]].last_use = i;
      last_computation[u] = computation;
    }
  }
  return stays;
}

Operation unit_operation(const StepProgram& program, OpKind kind, int unit) {
  Operation operation;
  operation.kind = kind;
  operation.unit = unit;
  operation.lane = lane_of(kind);
  if (kind == OpKind::gather_start) {
    operation.group = program.units[static_cast<std::size_t>(unit)].shard_group;
  }
  return operation;
}

/// What comes first of several operations put in one place.
enum class Rank : uint8_t { release, start, wait, prefetched_start };

struct Placed {
  std::size_t before = 0;
  Rank rank = Rank::release;
  Operation operation;
};

/// The k-th gather starts as soon as the compute has what the (k - prefetch)-th brought, but not while the
/// unit's previous stay lasts.
std::vector<Placed> place(const StepProgram& program, const std::vector<Stay>& stays, int prefetch) {
  std::vector<Placed> placed;
  const auto distance = static_cast<std::size_t>(prefetch);
  for (std::size_t k = 0; k < stays.size(); ++k) {
    const Stay& stay = stays[k];
    const std::size_t wanted = stays[k < distance ? 0 : k - distance].first_use;
    const std::size_t before = std::max(wanted, stay.earliest_start);
    const bool is_prefetched = k >= distance && before < stay.first_use;
    placed.push_back({before, is_prefetched ? Rank::prefetched_start : Rank::start,
                      unit_operation(program, OpKind::gather_start, stay.unit)});
    placed.push_back({stay.first_use, Rank::wait, unit_operation(program, OpKind::gather_wait, stay.unit)});
    placed.push_back({stay.last_use + 1, Rank::release, unit_operation(program, OpKind::release, stay.unit)});
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(a.before, a.rank) < std::tuple(b.before, b.rank);
  });
  return placed;
}

/// A wait needs its start; a start needs the last release before it, so that gathers cannot run ahead of the
/// compute further than the list says.
void link_needs(std::vector<Operation>& operations, std::size_t units) {
  std::vector<int> start_of(units, -1);
  int last_release = -1;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& operation = operations[i];
    if (operation.kind == OpKind::release) {
      last_release = static_cast<int>(i);
    } else if (operation.kind == OpKind::gather_start) {
      start_of[static_cast<std::size_t>(operation.unit)] = static_cast<int>(i);
      if (last_release >= 0) {
        operation.needs.push_back(last_release);
      }
    } else if (operation.kind == OpKind::gather_wait) {
      operation.needs.push_back(start_of[static_cast<std::size_t>(operation.unit)]);
    }
  }
}

}  // namespace

void gather_pass(StepProgram& program, const GatherPolicy& policy) {
  if (policy.prefetch < 0) {
    throw UsageError(format("the prefetch distance of gathers must be 0 or more, not {}", policy.prefetch));
  }
  if (policy.n < 1) {
    throw UsageError(format("resharding every n-th unit: n must be at least 1, not {}", policy.n));
  }
  const std::vector<Stay> stays = find_stays(program, policy);
  std::vector<Insertion> insertions;
  for (Placed& placed : place(program, stays, policy.prefetch)) {
    insertions.push_back({placed.before, std::move(placed.operation)});
  }
  insert_operations(program.operations, insertions);
  link_needs(program.operations, program.units.size());
}

}  // namespace stepforge
