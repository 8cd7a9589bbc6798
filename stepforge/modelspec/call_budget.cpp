// SPDX-License-Identifier: Apache-2.0
// The ways to run a list are found backward, call by call: whatever reads the results of a call is decided before it. A state
// is the set of values that are needed but not decided yet; of each state only ways remain that none beats in both bytes and
// work. Derivatives fix nearly all that is needed, so there are few states.
#include "stepforge/modelspec/call_budget.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

namespace {

/// How many FLOPs take about as long as a byte of memory, and as a byte to another rank: as on common processors. Products
/// are so much more work than calls that only pass over memory that other rates seldom change a choice.
constexpr double kFlopsPerByte = 16;
constexpr double kFlopsPerSentByte = 256;

template <typename List>
decltype(auto) item_at(List& list, int index) {
  return list[static_cast<std::size_t>(index)];
}

bool makes_output(const CallList& list, const Call& call) {
  return std::ranges::any_of(call.results,
                             [&](int result) { return std::ranges::count(list.outputs, result) > 0; });
}

int64_t bytes_of(const LayerValue& value, const CostContext& context) {
  return elements_of(value).bytes(context.tokens, context.compute, context.slices);
}

int64_t sent_bytes(const std::vector<Exchange>& exchanges, const CostContext& context) {
  int64_t sum = 0;
  for (const Exchange& exchange : exchanges)
    sum += exchange.elements.bytes(context.tokens, context.compute, context.slices);
  return sum;
}

/// A way to keep or make again what the calls decided so far make.
struct Way {
  int64_t bytes = 0;
  double work = 0;
  std::vector<int> recomputed;  ///< calls
};

/// Leaves ways of which each keeps more than the next one, for less work.
void drop_beaten(std::vector<Way>& ways) {
  std::ranges::sort(ways, [](const Way& a, const Way& b) {
    return std::tie(a.bytes, a.work, a.recomputed) < std::tie(b.bytes, b.work, b.recomputed);
  });
  std::vector<Way> left;
  for (Way& way : ways)
    if (left.empty() || way.work < left.back().work) left.push_back(std::move(way));
  std::ranges::reverse(left);
  ways = std::move(left);
}

class WaySearch {
 public:
  WaySearch(const CallList& list, const CostContext& context)
      : list_(list), context_(context), calls_(call_infos(list)) {}

  std::vector<Way> find() {
    states_ = {{without_inputs(values_read_by_derivatives(list_)), {Way()}}};
    for (int c = static_cast<int>(calls_.size()) - 1; c >= 0; --c) decide(c);
    std::vector<Way> ways = std::move(states_.begin()->second);
    for (Way& way : ways) add_aliases(way);
    return ways;
  }

 private:
  using Needed = std::vector<bool>;  ///< of each value

  Needed without_inputs(Needed needed) const {
    for (const int input : list_.inputs) item_at(needed, input) = false;  // they are there anyway
    return needed;
  }

  /// Of all states: whether what call `index` makes is kept or made again.
  void decide(int index) {
    const CallInfo& info = item_at(calls_, index);
    std::map<Needed, std::vector<Way>> next;
    const auto add = [&](const Needed& needed, Way way) { next[needed].push_back(std::move(way)); };
    for (auto& [needed, ways] : states_) {
      Needed kept = needed;
      for (const int result : info.call->results) item_at(kept, result) = false;
      const Needed again = with_operands(kept, info);
      const int64_t bytes = needed_bytes(needed, info);
      for (Way& way : ways) {
        if (kept == needed) {
          add(needed, std::move(way));
          continue;
        }
        if (info.aliases_operand() != kNoOperand) {
          add(again, std::move(way));
          continue;
        }
        const bool always = info.call->recompute;
        if (always || !makes_output(list_, *info.call)) add(again, recomputed(way, index));
        if (always) continue;
        way.bytes += bytes;
        add(kept, std::move(way));
      }
    }
    for (auto& [needed, ways] : next) drop_beaten(ways);
    states_ = std::move(next);
  }

  Way recomputed(Way way, int index) const {
    way.work += call_work(item_at(calls_, index), context_);
    way.recomputed.push_back(index);
    return way;
  }

  int64_t needed_bytes(const Needed& needed, const CallInfo& info) const {
    int64_t sum = 0;
    for (const int result : info.call->results)
      if (item_at(needed, result)) sum += bytes_of(list_.value(result), context_);
    return sum;
  }

  Needed with_operands(Needed needed, const CallInfo& info) const {
    for (const int operand : info.call->operands) item_at(needed, operand) = true;
    return without_inputs(std::move(needed));
  }

  /// What has the memory of a value that is made again is taken from it again, too.
  void add_aliases(Way& way) const {
    std::ranges::sort(way.recomputed);
    for (int c = 0; c < static_cast<int>(calls_.size()); ++c) {
      const int alias = item_at(calls_, c).aliases_operand();
      if (alias == kNoOperand) continue;
      const int operand = item_at(item_at(calls_, c).call->operands, alias);
      const bool again = std::ranges::any_of(way.recomputed, [&](int maker) {
        return std::ranges::count(item_at(list_.calls, maker).results, operand) > 0;
      });
      if (again) way.recomputed.push_back(c);
    }
    std::ranges::sort(way.recomputed);
  }

  const CallList& list_;
  const CostContext& context_;
  std::vector<CallInfo> calls_;
  std::map<Needed, std::vector<Way>> states_;
};

std::vector<RecomputationChoice> choices_of_list(const CallList& list, const CostContext& context) {
  std::vector<RecomputationChoice> choices;
  for (const Way& way : WaySearch(list, context).find()) {
    RecomputationChoice& choice = choices.emplace_back();
    choice.saved_bytes = way.bytes;
    choice.work = way.work;
    for (const int call : way.recomputed)
      if (!item_at(list.calls, call).recompute)
        choice.recomputed.push_back(item_at(list.calls, call).full_name());
  }
  return choices;
}

}  // namespace

std::vector<std::string> region_names(const BlockSpec& block) {
  std::vector<std::string> names;
  if (block.uses_autograd()) return names;
  for (const Call& call : block.list.calls)
    if (std::ranges::find(names, call.region) == names.end()) names.push_back(call.region);
  return names;
}

std::vector<std::string> call_names(const BlockSpec& block) {
  std::vector<std::string> kinds;
  std::vector<std::string> names;
  const bool keeps_nothing = block.kind == BlockKind::embedding || block.kind == BlockKind::head;
  if (keeps_nothing || block.uses_autograd()) return names;
  for (const Call& call : block.list.calls) {
    const std::string kind(call.kind->name);
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    names.push_back(call.full_name());
  }
  kinds.insert(kinds.end(), names.begin(), names.end());
  return kinds;
}

std::vector<std::string> calls_named(const BlockSpec& block, std::span<const std::string> names) {
  const auto is_named = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  std::vector<std::string> found;
  if (block.uses_autograd()) return found;
  for (const Call& call : block.list.calls)
    if ((is_named(call.kind->name) || is_named(call.full_name())) && !makes_output(block.list, call))
      found.push_back(call.full_name());
  return found;
}

double call_work(const CallInfo& info, const CostContext& context) {
  int64_t moved = 0;
  for (const LayerValue& operand : info.operands) moved += bytes_of(operand, context);
  for (const LayerValue& result : info.results) moved += bytes_of(result, context);
  return call_flops(info, context) + kFlopsPerByte * static_cast<double>(moved) +
         kFlopsPerSentByte * static_cast<double>(sent_bytes(info.exchanges().forward, context));
}

std::vector<RecomputationChoice> recomputation_choices(const BlockSpec& block, const CostContext& context) {
  if (block.uses_autograd()) return {{{}, block_cost(block, context).saved_bytes, 0}};
  return choices_of_list(block.list, context);
}

RecomputationChoice recomputation_within(const BlockSpec& block, const CostContext& context, double budget) {
  std::vector<RecomputationChoice> choices = recomputation_choices(block, context);
  const auto least = static_cast<double>(choices.back().saved_bytes);
  const double limit = least + budget * (static_cast<double>(choices.front().saved_bytes) - least);
  const auto first = std::ranges::find_if(choices, [&](const RecomputationChoice& choice) {
    return static_cast<double>(choice.saved_bytes) <= limit;
  });
  return first == choices.end() ? std::move(choices.back()) : std::move(*first);
}

}  // namespace stepforge
