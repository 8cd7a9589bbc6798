// SPDX-License-Identifier: Apache-2.0
// The order that a step program guarantees, independent of the speed of its lanes.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// Which operations must have finished when another one starts: those before it on its lane, those that it
/// `needs`, and those that come before these. `needs` must point backward.
class HappensBefore {
 public:
  HappensBefore() = default;
  explicit HappensBefore(const StepProgram& program);

  /// Appends an operation to the order.
  void add(const Operation& operation);
  /// Whether `first` must have finished when an operation that is added next starts.
  bool precedes_next(std::size_t first, const Operation& next) const {
    return at_start(next).at(lane_[first]) > position_[first];
  }

  /// Whether `first` must have finished when `second` starts.
  bool operator()(std::size_t first, std::size_t second) const {
    return finished_[second][lane_[first]] > position_[first];
  }
  /// The number of operations of `lane` that must have finished when `operation` starts.
  int finished(std::size_t operation, std::size_t lane) const { return finished_[operation][lane]; }
  std::size_t lane(std::size_t operation) const { return lane_[operation]; }
  /// The index of the operation in its lane.
  int position(std::size_t operation) const { return position_[operation]; }

 private:
  /// The number of operations of each lane that must have finished when this one, added next, starts.
  std::array<int, kLanes> at_start(const Operation& operation) const;

  std::vector<std::size_t> lane_;
  std::vector<int> position_;
  std::vector<std::array<int, kLanes>> finished_;
  std::array<int, kLanes> lane_size_ = {};
  std::array<std::array<int, kLanes>, kLanes> lane_end_ =
      {};  // finished_ after the last operation of each lane
};

}  // namespace stepforge
