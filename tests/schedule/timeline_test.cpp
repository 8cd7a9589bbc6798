// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/timeline.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/schedule/dependencies.h"
#include "stepforge/schedule/generators.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr double kForward = 4;
constexpr double kInput = 5;
constexpr double kWeight = 3;
constexpr double kAll = kForward + kInput + kWeight;

Timeline timeline_of(ScheduleKind kind, int ranks, int stages, int micro_batches, double forward = kForward,
                     double input = kInput, double weight = kWeight) {
  return simulate(make_schedule(kind, ranks, stages, micro_batches),
                  uniform_times(ranks * stages, forward, input, weight));
}

/// The idle time of the rank that takes longest from its first start to its last end.
double idle_in_span(const Timeline& timeline) {
  double idle = 0;
  for (const RankTime& rank : timeline.ranks) idle = std::max(idle, rank.end - rank.start - rank.busy);
  return idle;
}

double peak(const Timeline& timeline) {
  return std::ranges::max_element(timeline.ranks, {}, &RankTime::peak_activations)->peak_activations;
}

// (p-1)/(m+p-1): arXiv 1811.06965, section 2.3, and 2104.04473, section 2.2.
TEST(Timeline, BubbleOfGPipeAnd1F1BIsThePublishedOne) {
  for (const ScheduleKind& kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (const int micro_batches : {1, 3, 4, 8, 32}) {
        const Timeline timeline = timeline_of(kind, ranks, 1, micro_batches);
        EXPECT_EQ(timeline.makespan, kAll * (micro_batches + ranks - 1));
        for (const RankTime& rank : timeline.ranks)
          EXPECT_DOUBLE_EQ(rank.bubble_share, (ranks - 1.0) / (micro_batches + ranks - 1));
      }
    }
  }
}

// (p-1)/(vm+p-1): arXiv 2104.04473, section 2.2, and 2211.05953.
TEST(Timeline, BubbleOfInterleavedAndLoopedSchedulesIsDividedByTheStagesPerRank) {
  for (const ScheduleKind& kind : {ScheduleKind::interleaved_1f1b, ScheduleKind::looped_bfs}) {
    for (const int ranks : {1, 2, 4}) {
      for (const int stages : {2, 3}) {
        for (const int rounds : {1, 2, 5}) {
          const Timeline timeline = timeline_of(kind, ranks, stages, rounds * ranks);
          for (const RankTime& rank : timeline.ranks)
            EXPECT_DOUBLE_EQ(rank.bubble_share, (ranks - 1.0) / (stages * rounds * ranks + ranks - 1))
                << kind.name << " " << ranks << " " << stages << " " << rounds;
        }
      }
    }
  }
}

TEST(Timeline, InterleavedRoundsOfUnevenSizeKeepTheBubble) {
  for (const int micro_batches : {5, 6, 7, 9, 10, 11, 13, 21}) {
    const Timeline timeline = timeline_of(ScheduleKind::interleaved_1f1b, 4, 2, micro_batches);
    EXPECT_DOUBLE_EQ(timeline.ranks[0].bubble_share, 3.0 / (2 * micro_batches + 3)) << micro_batches;
  }
}

// ZB-H1: the idle time is (p-1)(F+I-W), arXiv 2401.10241, table 2.
TEST(Timeline, BubbleOfInterleavedZeroBubbleIsThatOfZbH1) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int stages : {2, 3}) {
      for (const int rounds : {1, 2, 5}) {
        const Timeline timeline =
            timeline_of(ScheduleKind::interleaved_zero_bubble, ranks, stages, rounds * ranks);
        EXPECT_EQ(idle_in_span(timeline), (ranks - 1) * (kForward + kInput - kWeight))
            << ranks << " " << stages << " " << rounds;
      }
    }
  }
}

// arXiv 2401.10241, section 6: no bubble if F, I and W take the same time, from each rank's first action to
// its last.
TEST(Timeline, ZbvHasNoBubbleIfAllActionsTakeTheSame) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int more : {0, 1, 7}) {
      const Timeline timeline =
          timeline_of(ScheduleKind::zbv_zero_bubble, ranks, 2, 2 * ranks + more, 1, 1, 1);
      EXPECT_EQ(idle_in_span(timeline), 0) << ranks << " " << more;
      EXPECT_EQ(timeline.span_bubble_share(), 0);
    }
  }
}

/// When DualPipeV ends if a forward and the backward that follows it run as one, as its paper draws them:
/// both start when both can, and end together. The last rank's first pair does not.
double end_with_pairs(const Schedule& schedule, const StageTimes& times) {
  const ActionTable table(schedule);
  std::vector<std::vector<double>> ends;
  for (const auto& actions : schedule.actions) ends.emplace_back(actions.size(), 0);
  const auto input = [&](const Action& action) {
    const auto need = table.need(action);
    return need ? ends[static_cast<std::size_t>(need->rank)][static_cast<std::size_t>(need->position)] : 0;
  };
  const auto length = [&](const Action& action) {
    return action.kind == ActionKind::backward         ? times.stages[0].backward
           : action.kind == ActionKind::forward        ? times.stages[0].forward
           : action.kind == ActionKind::backward_input ? times.stages[0].backward_input
                                                       : times.stages[0].backward_weight;
  };
  double last = 0;
  for (std::size_t sweep = 0; sweep < schedule.actions.size() * schedule.actions[0].size(); ++sweep) {
    for (std::size_t rank = 0; rank < ends.size(); ++rank) {
      const std::vector<Action>& actions = schedule.actions[rank];
      bool alone = rank + 1 == ends.size();
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const double start = std::max(i == 0 ? 0 : ends[rank][i - 1], input(actions[i]));
        ends[rank][i] = start + length(actions[i]);
        if (i == 0 || actions[i].kind != ActionKind::backward || actions[i - 1].kind != ActionKind::forward)
          continue;
        if (!std::exchange(alone, false)) {
          const double before =
              std::max({i == 1 ? 0 : ends[rank][i - 2], input(actions[i - 1]), input(actions[i])});
          ends[rank][i] = ends[rank][i - 1] = before + length(actions[i - 1]) + length(actions[i]);
        }
        last = std::max(last, ends[rank][i]);
      }
      last = std::max(last, ends[rank].back());
    }
  }
  return last;
}

// github.com/deepseek-ai/DualPipe, README: (PP/2-1)(F&B + B - 3W) of PP stages on PP/2 ranks, where B is the
// whole backward and F&B a forward and a backward that run as one. It holds if F and I take the same.
TEST(Timeline, BubbleOfDualPipeVIsThePublishedOne) {
  for (const int ranks : {1, 2, 4}) {
    for (const int more : {0, 1}) {
      const Schedule schedule = make_schedule(ScheduleKind::dual_pipe_v, ranks, 2, 2 * ranks + more);
      const double forward = 4;
      const double weight = 3;
      const double backward = forward + weight;
      const double idle = end_with_pairs(schedule, uniform_times(2 * ranks, forward, forward, weight)) -
                          2 * (forward + backward) * schedule.micro_batches;
      EXPECT_EQ(idle, (ranks - 1) * (forward + backward + backward - 3 * weight)) << ranks << " " << more;
    }
  }
}

// One after the other, a forward's result leaves before the backward that follows, and the bubble is that of
// ZB-H1.
TEST(Timeline, DualPipeVWithoutOverlapHasASmallerBubble) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int more : {0, 1, 7}) {
      const Timeline timeline = timeline_of(ScheduleKind::dual_pipe_v, ranks, 2, 2 * ranks + more, 4, 4, 3);
      EXPECT_EQ(idle_in_span(timeline), (ranks - 1) * (4 + 4 - 3)) << ranks << " " << more;
    }
  }
}

TEST(Timeline, PeakOf1F1BDoesNotDependOnTheNumberOfMicroBatches) {
  for (const int micro_batches : {4, 8, 32}) {
    const Timeline timeline = timeline_of(ScheduleKind::one_f_one_b, 4, 1, micro_batches);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(timeline.ranks[static_cast<std::size_t>(rank)].peak_activations, 4 - rank);
  }
}

TEST(Timeline, PeakOfBreadthFirstSchedulesGrowsWithTheMicroBatches) {
  for (const int micro_batches : {4, 8, 32}) {
    EXPECT_EQ(peak(timeline_of(ScheduleKind::gpipe, 4, 1, micro_batches)), micro_batches);
    EXPECT_EQ(peak(timeline_of(ScheduleKind::looped_bfs, 4, 2, micro_batches)), 2 * micro_batches);
  }
}

// In units of one stage, of which a rank has two: p for both papers is 2p here, 2p+1 for DualPipeV.
TEST(Timeline, PeaksOfTheVSchedulesArePublishedOnes) {
  for (const int micro_batches : {8, 9, 32}) {
    EXPECT_EQ(peak(timeline_of(ScheduleKind::zbv_zero_bubble, 4, 2, micro_batches)), 8);
    EXPECT_EQ(peak(timeline_of(ScheduleKind::dual_pipe_v, 4, 2, micro_batches)), 9);
  }
}

TEST(Timeline, InputGradientsFreeWhatWeightGradientsDoNotNeed) {
  Schedule schedule;
  schedule.micro_batches = 2;
  schedule.rank_of_stage = {0};
  schedule.actions = {{{ActionKind::forward, 0, 0},
                       {ActionKind::backward_input, 0, 0},
                       {ActionKind::forward, 0, 1},
                       {ActionKind::backward_input, 0, 1},
                       {ActionKind::backward_weight, 0, 0},
                       {ActionKind::backward_weight, 0, 1}}};
  StageTimes times = uniform_times(1, 1, 1, 1);
  EXPECT_EQ(simulate(schedule, times).ranks[0].peak_activations, 2);
  times.stages[0].weight_activations = 0.25;
  EXPECT_EQ(simulate(schedule, times).ranks[0].peak_activations, 1.25);
}

TEST(Timeline, MessagesBetweenRanksTakeTheLatency) {
  StageTimes times = uniform_times(4, 1, 1, 1);
  times.latency = 0.5;
  const Timeline timeline = simulate(make_schedule(ScheduleKind::zbv_zero_bubble, 2, 2, 1), times);
  // Stages 1 and 2 are both on rank 1: four forwards pass two messages, four input gradients two more. W
  // follows I on rank 1, so that two of them delay the input gradients.
  EXPECT_EQ(timeline.makespan, (4 + 2 * 0.5) + (4 + 2 * 0.5 + 1) + 1);
}

TEST(Timeline, TheLossBelongsToTheLastForwardUnlessItIsListed) {
  StageTimes times = uniform_times(2, 1, 1, 1);
  times.stages[1].loss = 0.5;
  Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 1);
  const Timeline inside = simulate(schedule, times);
  EXPECT_EQ(inside.actions[1][0].end, 2.5);
  schedule.actions[1].insert(schedule.actions[1].begin() + 1, {ActionKind::loss, 1, 0});
  const Timeline listed = simulate(schedule, times);
  EXPECT_EQ(listed.actions[1][0].end, 2);
  EXPECT_EQ(listed.actions[1][1].end, 2.5);
  EXPECT_EQ(listed.makespan, inside.makespan);
}

TEST(Timeline, TimesOfOtherStagesAreRefused) {
  EXPECT_CONTAINS(message_of<Error>([] {
                    simulate(make_schedule(ScheduleKind::gpipe, 2, 1, 1), uniform_times(3, 1, 1, 1));
                  }),
                  "2 stages", "times of 3");
}

}  // namespace
}  // namespace stepforge::testing
