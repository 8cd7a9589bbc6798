// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/action_text.h"
#include "stepforge/schedule/dependencies.h"

namespace stepforge {

namespace {

using Product = ActionTable::Product;

const Action& action_at(const Schedule& schedule, const ActionPlace& place) {
  return schedule.actions[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.position)];
}

/// "rank 1, position 4 (2F3)"
std::string place_text(const Schedule& schedule, const ActionPlace& place) {
  return format("rank {}, position {} ({})", place.rank, place.position,
                action_text(action_at(schedule, place)));
}

[[noreturn]] void refuse(const Schedule& schedule, const ActionPlace& place, const std::string& fault) {
  throw UsageError(format("pipeline schedule: {}: {}", place_text(schedule, place), fault));
}

void check_shape(const Schedule& schedule) {
  if (schedule.ranks() < 1 || schedule.stages() < 1 || schedule.micro_batches < 1)
    throw UsageError(
        format("pipeline schedule: {} ranks, {} stages, {} micro-batches; there must be at least one of each",
               schedule.ranks(), schedule.stages(), schedule.micro_batches));
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const int rank = schedule.rank_of_stage[static_cast<std::size_t>(stage)];
    if (rank < 0 || rank >= schedule.ranks())
      throw UsageError(format("pipeline schedule: stage {} is on rank {}, but there are {} ranks", stage,
                              rank, schedule.ranks()));
  }
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    if (schedule.actions[static_cast<std::size_t>(rank)].empty())
      throw UsageError(format("pipeline schedule: rank {} has no action; each rank needs a stage", rank));
  }
  // Bounds the table: a file may name any numbers.
  std::size_t listed = 0;
  for (const auto& actions : schedule.actions) listed += actions.size();
  const int64_t cells = int64_t{schedule.stages()} * schedule.micro_batches;
  if (static_cast<int64_t>(listed) < cells)
    throw UsageError(
        format("pipeline schedule: {} actions are too few for {} stages and {} micro-batches; each pair "
               "needs a forward and a backward",
               listed, schedule.stages(), schedule.micro_batches));
}

void check_action(const Schedule& schedule, const ActionPlace& place) {
  const Action& action = action_at(schedule, place);
  if (action.stage < 0 || action.stage >= schedule.stages())
    refuse(schedule, place, format("there are only stages 0 to {}", schedule.stages() - 1));
  if (action.micro_batch < 0 || action.micro_batch >= schedule.micro_batches)
    refuse(schedule, place, format("there are only micro-batches 0 to {}", schedule.micro_batches - 1));
  if (const int rank = schedule.rank_of_stage[static_cast<std::size_t>(action.stage)]; rank != place.rank)
    refuse(schedule, place, format("stage {} is on rank {}", action.stage, rank));
  if (action.kind == ActionKind::loss && action.stage + 1 != schedule.stages())
    refuse(schedule, place, format("only the last stage, {}, has the loss", schedule.stages() - 1));
}

/// The table has the first action of each product; any other is one too many.
void check_unique(const Schedule& schedule, const ActionTable& table, const ActionPlace& place) {
  const Action& action = action_at(schedule, place);
  for (const Product product : products_of(action.kind)) {
    const auto first = table.find(product, action.stage, action.micro_batch);
    if (*first != place) refuse(schedule, place, format("{} already did this", place_text(schedule, *first)));
  }
}

void check_complete(const Schedule& schedule, const ActionTable& table) {
  struct Needed {
    Product product;
    const char* text;
  };
  constexpr std::array<Needed, 3> kNeeded = {
      {{Product::output, "F"}, {Product::input_gradient, "B or I"}, {Product::weight_gradient, "W after I"}}};
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
      for (const auto& [product, text] : kNeeded) {
        if (!table.find(product, stage, micro_batch))
          throw UsageError(format("pipeline schedule: rank {} has no {} of stage {} and micro-batch {}",
                                  schedule.rank_of_stage[static_cast<std::size_t>(stage)], text, stage,
                                  micro_batch));
      }
    }
  }
}

/// The order of the actions of one stage and micro-batch, all of which are on one rank.
void check_order(const Schedule& schedule, const ActionTable& table, const ActionPlace& place) {
  const Action& action = action_at(schedule, place);
  const auto require_before = [&](Product product) {
    const auto before = table.find(product, action.stage, action.micro_batch);
    if (before && before->position > place.position)
      refuse(schedule, place, format("comes before {}, which it needs", place_text(schedule, *before)));
  };
  if (action.kind == ActionKind::forward) return;
  require_before(Product::output);
  if (action.kind == ActionKind::backward_weight) require_before(Product::input_gradient);
  if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
    require_before(Product::loss);
}

/// `waiting` are the first actions of the ranks that cannot go on; each needs an action of a rank that cannot
/// either.
[[noreturn]] void refuse_cycle(const Schedule& schedule, const ActionTable& table,
                               const std::vector<std::optional<ActionPlace>>& waiting) {
  const auto next = [&](const ActionPlace& place) {
    return *waiting[static_cast<std::size_t>(table.need(action_at(schedule, place))->rank)];
  };
  ActionPlace place = **std::ranges::find_if(waiting, [](const auto& at) { return at.has_value(); });
  for (int i = 0; i < schedule.ranks(); ++i) place = next(place);  // now it is in the cycle
  std::vector<std::string> lines;
  const ActionPlace first = place;
  do {
    const ActionPlace need = *table.need(action_at(schedule, place));
    const ActionPlace other = next(place);
    lines.push_back(format(
        "{} waits for {}{}", place_text(schedule, place), place_text(schedule, need),
        need == other ? "" : format(", which comes after {}", action_text(action_at(schedule, other)))));
    place = other;
  } while (place != first);
  throw UsageError(
      format("pipeline schedule: actions wait for each other in a cycle; reorder one of these ranks:\n  {}",
             join(lines, "\n  ")));
}

void check_acyclic(const Schedule& schedule, const ActionTable& table) {
  std::vector<int> done(static_cast<std::size_t>(schedule.ranks()), 0);
  for (const ActionPlace& place : run_order(schedule, table)) ++done[static_cast<std::size_t>(place.rank)];
  std::vector<std::optional<ActionPlace>> waiting(done.size());
  bool stuck = false;
  for (std::size_t rank = 0; rank < done.size(); ++rank) {
    if (static_cast<std::size_t>(done[rank]) == schedule.actions[rank].size()) continue;
    waiting[rank] = {.rank = static_cast<int>(rank), .position = done[rank]};
    stuck = true;
  }
  if (stuck) refuse_cycle(schedule, table, waiting);
}

template <typename Check>
void for_each_action(const Schedule& schedule, const Check& check) {
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto count = static_cast<int>(schedule.actions[static_cast<std::size_t>(rank)].size());
    for (int position = 0; position < count; ++position)
      check(ActionPlace{.rank = rank, .position = position});
  }
}

}  // namespace

void check_schedule(const Schedule& schedule) {
  check_shape(schedule);
  for_each_action(schedule, [&](const ActionPlace& place) { check_action(schedule, place); });
  const ActionTable table(schedule);
  for_each_action(schedule, [&](const ActionPlace& place) { check_unique(schedule, table, place); });
  check_complete(schedule, table);
  for_each_action(schedule, [&](const ActionPlace& place) { check_order(schedule, table, place); });
  check_acyclic(schedule, table);
}

}  // namespace stepforge
