// SPDX-License-Identifier: Apache-2.0
// All kinds of schedules, and numbers of stages per rank that they take.
#pragma once

#include <algorithm>
#include <vector>

#include "stepforge/schedule/generators.h"

namespace stepforge::testing {

inline std::vector<ScheduleKind> all_kinds() {
  std::vector<ScheduleKind> kinds;
  for (const std::string& name : schedule_names()) kinds.push_back(parse_schedule_name(name));
  return kinds;
}

inline std::vector<int> stage_numbers(ScheduleKind kind) {
  const auto [min, max] = stages_per_rank(kind);
  std::vector<int> numbers;
  for (int stages = min; stages <= std::min(max, 3); ++stages) numbers.push_back(stages);
  return numbers;
}

}  // namespace stepforge::testing
