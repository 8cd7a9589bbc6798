// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/state.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

Json saved_state() {
  return {
      {"step", 5},          {"tokens", 640},           {"skipped", 1},
      {"rows_consumed", 7}, {"data_fingerprint", "x"}, {"smoothed_loss", {{"sum", 2.5}, {"weight", 0.5}}}};
}

TEST(TrainerState, IsReadFromACheckpoint) {
  const TrainerState state = state_from_json(saved_state(), "state.json");
  EXPECT_EQ(state.step, 5);
  EXPECT_EQ(state.tokens, 640);
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.loader.rows_consumed, 7);
}

TEST(TrainerState, OfAnOlderCheckpointHasNoScheduleAndNothingPending) {
  const TrainerState state = state_from_json(saved_state(), "state.json");
  EXPECT_EQ(state.schedule_steps, 0);
  EXPECT_EQ(state.arithmetic, "");
  EXPECT_FALSE(state.validation_pending);
}

TEST(TrainerState, NumbersOutOfRangeAreRefusedNamingTheFileAndTheField) {
  for (const char* key : {"step", "tokens", "skipped", "rows_consumed", "schedule_steps"}) {
    for (const Json& value : std::vector<Json>{-1, 1.5, uint64_t{1} << 63, "3", nullptr}) {
      Json state = saved_state();
      state.update({{"arithmetic", "1 thread"}, {"validation_pending", false}, {"schedule_steps", 8}});
      state[key] = value;
      const std::string message =
          message_of<FormatError>([&] { state_from_json(state, "step-5/state.json"); });
      EXPECT_TRUE(contains(message, "step-5/state.json") && contains(message, format("\"{}\"", key)))
          << key << " = " << value << ": " << message;
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
