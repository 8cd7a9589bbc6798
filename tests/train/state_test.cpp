// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/state.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/config.h"
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

/// As a run writes it after 36 steps of 4 rows, one of which was skipped and one without labels.
Json written_state() {
  TrainerState state;
  state.step = 36;
  state.tokens = 4500;
  state.labels = 4400;
  state.skipped = 1;
  state.unlabelled = 1;
  state.loader = {144, "x"};
  state.schedule_begin = 10;
  state.schedule_steps = 100;
  Json json = state_to_json(state, Config{}, 4, 34);
  json["optimizer_steps"] = 34;
  return json;
}

TEST(TrainerState, NumbersThatContradictEachOtherAreRefusedWithTheRemedy) {
  EXPECT_NO_THROW(state_from_json(written_state(), "state.json"));
  const Json changes = {{"tokens", {0, 35}},
                        {"labels", {4501}},
                        {"skipped", {37}},
                        {"unlabelled", {36}},
                        {"rows_consumed", {0, 35, 143, 148}},
                        {"rows_per_step", {0, 5}},
                        {"optimizer_steps", {0, 36}},
                        {"schedule_begin", {37, 100, INT64_MAX}},
                        {"schedule_steps", {INT64_MAX}}};
  for (const auto& [field, values] : changes.items()) {
    for (const Json& value : values) {
      Json state = written_state();
      state[field] = value;
      const std::string message =
          message_of<FormatError>([&] { state_from_json(state, "step-36/state.json"); });
      EXPECT_CONTAINS(message, "step-36/state.json: \"") << field << " = " << value;
      if (field != "rows_per_step")
        EXPECT_CONTAINS(message, format("\"{}\" is {}", field, value.dump()), "checkpoint.load_step=N");
    }
  }
}

TEST(TrainerState, OfARunWithAnotherBatchBeforeHasAnOffset) {
  TrainerState state;
  state.step = 36;
  state.tokens = 4500;
  state.loader = {100, "x"};
  const Json json = state_to_json(state, Config{}, 4, 20);
  EXPECT_EQ(json["rows_offset"], -44);
  EXPECT_EQ(json["updates_offset"], -16);
  EXPECT_EQ(state_from_json(json, "state.json").loader.rows_consumed, 100);
}

}  // namespace
}  // namespace stepforge::testing
