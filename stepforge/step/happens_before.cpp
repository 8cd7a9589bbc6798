// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/happens_before.h"

#include <algorithm>

namespace stepforge {

HappensBefore::HappensBefore(const StepProgram& program) {
  const std::size_t count = program.operations.size();
  lane_.resize(count);
  position_.resize(count);
  finished_.resize(count);
  std::array<int, kLanes> lane_size{};
  std::array<std::array<int, kLanes>, kLanes> lane_end{};  // finished_ after the last operation of each lane
  for (std::size_t i = 0; i < count; ++i) {
    const auto lane = static_cast<std::size_t>(program.operations[i].lane);
    lane_[i] = lane;
    position_[i] = lane_size.at(lane)++;
    std::array<int, kLanes>& finished = finished_[i];
    finished = lane_end.at(lane);
    for (const int needed : program.operations[i].needs) {
      const auto other = static_cast<std::size_t>(needed);
      for (std::size_t l = 0; l < kLanes; ++l)
        finished.at(l) = std::max(finished.at(l), finished_[other].at(l));
      finished.at(lane_[other]) = std::max(finished.at(lane_[other]), position_[other] + 1);
    }
    lane_end.at(lane) = finished;
    lane_end.at(lane).at(lane) = position_[i] + 1;
  }
}

}  // namespace stepforge
