// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for pipeline schedules in CSV. What is read is written and read back as the same; what
// passes the check can be simulated.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/schedule/check.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/timeline.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(bytes), size);
  try {
    const stepforge::Schedule schedule = stepforge::parse_schedule_csv(file, "input.csv");
    const stepforge::Schedule again =
        stepforge::parse_schedule_csv(stepforge::schedule_csv(schedule), "again.csv");
    if (again.actions != schedule.actions || again.rank_of_stage != schedule.rank_of_stage ||
        again.micro_batches != schedule.micro_batches)
      __builtin_trap();
    stepforge::check_schedule(schedule);
    stepforge::simulate(schedule, stepforge::uniform_times(schedule.stages(), 1, 1, 1));
  } catch (const stepforge::FormatError&) {
    return 0;
  } catch (const stepforge::UsageError&) {
    return 0;
  }
  return 0;
}
