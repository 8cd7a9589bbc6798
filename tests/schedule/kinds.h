// SPDX-License-Identifier: Apache-2.0
// All kinds of schedules, and numbers of stages per rank that they take.
#pragma once

#include <algorithm>
#include <vector>

#include "stepforge/schedule/generators.h"

namespace stepforge::testing {

inline std::vector<ScheduleKind> all_kinds() {
  return schedule_kinds();
}

inline std::vector<int> stage_numbers(const ScheduleKind& kind) {
  const auto [min, max] = kind.stages;
  std::vector<int> numbers;
  for (int stages = min; stages <= std::min(max, 3); ++stages) numbers.push_back(stages);
  return numbers;
}

}  // namespace stepforge::testing
