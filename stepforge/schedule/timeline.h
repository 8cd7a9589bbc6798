// SPDX-License-Identifier: Apache-2.0
// Predicts when the actions of a schedule run and how many activations are alive, from the times of the
// stages.
#pragma once

#include <vector>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// The times, in seconds, and the memory of a stage for one micro-batch.
struct StageTime {
  double forward = 0;
  double backward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double loss = 0;  ///< of the last stage
  /// What a forward leaves for its backward, and the part of it that W needs: I frees the rest. In any unit,
  /// the same for all stages. By default I frees nothing.
  double activations = 1;
  double weight_activations = 1;
};

struct StageTimes {
  std::vector<StageTime> stages;
  double latency =
      0;  ///< seconds from the end of an action to the start of one on another rank that needs it
};

/// Stages that all take the same; B takes as long as I and W.
StageTimes uniform_times(int stages, double forward, double backward_input, double backward_weight);

struct ActionTime {
  double start = 0;  ///< seconds from the beginning of the step
  double end = 0;
};

struct RankTime {
  double start = 0;             ///< of its first action
  double end = 0;               ///< of its last action
  double busy = 0;              ///< the sum of its actions
  double bubble_share = 0;      ///< 1 - busy / makespan; 0 if the makespan is 0
  double peak_activations = 0;  ///< the most that is alive at one time, in the unit of StageTime::activations
};

struct Timeline {
  std::vector<std::vector<ActionTime>> actions;  ///< of each rank, as in the schedule
  std::vector<RankTime> ranks;
  double makespan = 0;  ///< when the last action ends

  /// The longest time of any rank from first start to last end. The zero-bubble papers take this as the
  /// time of a step, as their ranks need not begin and end a step together.
  double longest_span() const;
  /// The idle share of that rank in that time; 0 if it is 0.
  double span_bubble_share() const;
};

/// Each action starts when the one before it on its rank has ended and what it needs has arrived. If the loss
/// is not listed, it belongs to the last stage's forward. `schedule` must pass check_schedule(). Throws Error
/// if `times` has another number of stages, or the actions wait for each other.
Timeline simulate(const Schedule& schedule, const StageTimes& times);

}  // namespace stepforge
