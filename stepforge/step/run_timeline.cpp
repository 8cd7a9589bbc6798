// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/run_timeline.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The action of a rank that a computation of a block is part of, from the action `from` on: their orders are the same.
std::size_t find_action(const std::vector<Action>& actions, std::size_t from, int stage,
                        const Operation& operation) {
  const bool lists_loss = std::ranges::count(actions, ActionKind::loss, &Action::kind) > 0;
  const auto runs = [&](ActionKind kind) {
    switch (operation.kind) {
      case OpKind::forward:
        return kind == ActionKind::forward;
      case OpKind::loss_forward_backward:
        return kind == (lists_loss ? ActionKind::loss : ActionKind::forward);
      case OpKind::backward_input:
        return kind == ActionKind::backward_input;
      case OpKind::backward_weight:
        return kind == ActionKind::backward_weight;
      default:  // backward and recompute, of blocks that are not split too
        return kind != ActionKind::forward && kind != ActionKind::loss;
    }
  };
  for (std::size_t k = from; k < actions.size(); ++k)
    if (actions[k].stage == stage && actions[k].micro_batch == operation.micro_batch && runs(actions[k].kind))
      return k;
  throw Error(format("no action of the schedule computes {} of stage {} and micro-batch {}",
                     op_name(operation.kind), stage, operation.micro_batch));
}

/// Sets the times of the actions of one rank.
void set_action_times(const StepProgram& program, const std::vector<OperationTime>& times,
                      const std::vector<Action>& actions, std::vector<ActionTime>& of_actions) {
  std::ranges::fill(of_actions, ActionTime{});
  std::size_t current = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.block < 0 || has_trait(operation.kind, kHasPeer)) continue;
    current = find_action(actions, current, element(program.blocks, operation.block).stage, operation);
    ActionTime& time = of_actions[current];
    if (time.end == 0) time.start = times[i].start;
    time.end = times[i].end;
  }
}

}  // namespace

Timeline timeline_of(std::span<const StepProgram> programs, const PipelineRun& run,
                     const Schedule& schedule) {
  Timeline timeline = simulate(schedule, uniform_times(schedule.stages(), 1, 1, 1));
  timeline.makespan = 0;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    std::vector<ActionTime>& actions = timeline.actions[p];
    set_action_times(programs[p], run.times[p], schedule.actions[p], actions);
    RankTime& rank = timeline.ranks[p];
    rank.busy = rank.end = 0;
    for (const ActionTime& action : actions) {
      rank.busy += action.end - action.start;
      rank.end = std::max(rank.end, action.end);
    }
    rank.start = actions.empty() ? 0 : actions.front().start;
    timeline.makespan = std::max(timeline.makespan, rank.end);
  }
  for (RankTime& rank : timeline.ranks)
    rank.bubble_share = (timeline.makespan - rank.busy) / timeline.makespan;
  return timeline;
}

}  // namespace stepforge
