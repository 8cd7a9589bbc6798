// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/timeline.h"

#include <algorithm>
#include <cstddef>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/dependencies.h"

namespace stepforge {

namespace {

double seconds(const StageTime& stage, ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return stage.forward;
    case ActionKind::backward:
      return stage.backward;
    case ActionKind::backward_input:
      return stage.backward_input;
    case ActionKind::backward_weight:
      return stage.backward_weight;
    case ActionKind::loss:
      break;
  }
  return stage.loss;
}

/// What an action adds to the live activations when it starts, and takes away when it ends.
struct MemoryChange {
  double adds = 0;
  double frees = 0;
};

MemoryChange memory_change(const StageTime& stage, ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return {.adds = stage.activations, .frees = 0};
    case ActionKind::backward:
      return {.adds = 0, .frees = stage.activations};
    case ActionKind::backward_input:
      return {.adds = 0, .frees = stage.activations - stage.weight_activations};
    case ActionKind::backward_weight:
      return {.adds = 0, .frees = stage.weight_activations};
    case ActionKind::loss:
      break;
  }
  return {};
}

/// A rank runs one action at a time, so its peak follows from the order alone.
double peak_activations(const std::vector<Action>& actions, const StageTimes& times) {
  double live = 0;
  double peak = 0;
  for (const Action& action : actions) {
    const auto [adds, frees] =
        memory_change(times.stages[static_cast<std::size_t>(action.stage)], action.kind);
    live += adds;
    peak = std::max(peak, live);
    live -= frees;
  }
  return peak;
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const StageTimes& times)
      : schedule_(schedule), times_(times), table_(schedule) {
    for (const auto& actions : schedule.actions) timeline_.actions.emplace_back(actions.size());
    timeline_.ranks.resize(schedule.actions.size());
  }

  Timeline run() {
    const std::vector<ActionPlace> order = run_order(schedule_, table_);
    for (const ActionPlace& place : order) run_action(place);
    std::size_t listed = 0;
    for (const auto& actions : schedule_.actions) listed += actions.size();
    if (order.size() < listed)
      throw Error(
          format("pipeline schedule: {} of {} actions wait for each other", listed - order.size(), listed));
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) sum_up(rank);
    return std::move(timeline_);
  }

 private:
  ActionTime& time_at(const ActionPlace& place) {
    return timeline_.actions[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.position)];
  }

  double duration(const Action& action) const {
    const StageTime& stage = times_.stages[static_cast<std::size_t>(action.stage)];
    const bool has_loss = action.kind == ActionKind::forward && action.stage + 1 == schedule_.stages() &&
                          !table_.find(ActionTable::Product::loss, action.stage, action.micro_batch);
    return seconds(stage, action.kind) + (has_loss ? stage.loss : 0);
  }

  void run_action(const ActionPlace& place) {
    const Action& action =
        schedule_.actions[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.position)];
    double start = place.position == 0 ? 0 : time_at({place.rank, place.position - 1}).end;
    if (const auto need = table_.need(action))
      start = std::max(start, time_at(*need).end + (need->rank == place.rank ? 0 : times_.latency));
    const double length = duration(action);
    time_at(place) = {.start = start, .end = start + length};
    timeline_.ranks[static_cast<std::size_t>(place.rank)].busy += length;
    timeline_.makespan = std::max(timeline_.makespan, start + length);
  }

  void sum_up(std::size_t rank) {
    RankTime& sums = timeline_.ranks[rank];
    const std::vector<ActionTime>& actions = timeline_.actions[rank];
    if (!actions.empty()) {
      sums.start = actions.front().start;
      sums.end = actions.back().end;
    }
    if (timeline_.makespan > 0) sums.bubble_share = (timeline_.makespan - sums.busy) / timeline_.makespan;
    sums.peak_activations = peak_activations(schedule_.actions[rank], times_);
  }

  const Schedule& schedule_;
  const StageTimes& times_;
  ActionTable table_;
  Timeline timeline_;
};

double span(const RankTime& rank) {
  return rank.end - rank.start;
}

const RankTime& longest_rank(const std::vector<RankTime>& ranks) {
  return *std::ranges::max_element(ranks, {}, span);
}

}  // namespace

StageTimes uniform_times(int stages, double forward, double backward_input, double backward_weight) {
  StageTime stage;
  stage.forward = forward;
  stage.backward = backward_input + backward_weight;
  stage.backward_input = backward_input;
  stage.backward_weight = backward_weight;
  return {.stages = std::vector<StageTime>(static_cast<std::size_t>(stages), stage)};
}

double Timeline::longest_span() const {
  return span(longest_rank(ranks));
}

double Timeline::span_bubble_share() const {
  const RankTime& longest = longest_rank(ranks);
  return span(longest) > 0 ? (span(longest) - longest.busy) / span(longest) : 0;
}

Timeline simulate(const Schedule& schedule, const StageTimes& times) {
  if (times.stages.size() != schedule.rank_of_stage.size())
    throw Error(format("the schedule has {} stages, but there are times of {}", schedule.stages(),
                       times.stages.size()));
  return Simulation(schedule, times).run();
}

}  // namespace stepforge
