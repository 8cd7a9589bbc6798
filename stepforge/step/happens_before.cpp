// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/happens_before.h"

#include <algorithm>

namespace stepforge {

HappensBefore::HappensBefore(const StepProgram& program) {
  lane_.reserve(program.operations.size());
  position_.reserve(program.operations.size());
  finished_.reserve(program.operations.size());
  for (const Operation& operation : program.operations) add(operation);
}

std::array<int, kLanes> HappensBefore::at_start(const Operation& operation) const {
  std::array<int, kLanes> finished = lane_end_.at(static_cast<std::size_t>(operation.lane));
  for (const int needed : operation.needs) {
    const auto other = static_cast<std::size_t>(needed);
    for (std::size_t l = 0; l < kLanes; ++l)
      finished.at(l) = std::max(finished.at(l), finished_[other].at(l));
    finished.at(lane_[other]) = std::max(finished.at(lane_[other]), position_[other] + 1);
  }
  return finished;
}

void HappensBefore::add(const Operation& operation) {
  const auto lane = static_cast<std::size_t>(operation.lane);
  const int position = lane_size_.at(lane)++;
  finished_.push_back(at_start(operation));
  lane_.push_back(lane);
  position_.push_back(position);
  lane_end_.at(lane) = finished_.back();
  lane_end_.at(lane).at(lane) = position + 1;
}

}  // namespace stepforge
