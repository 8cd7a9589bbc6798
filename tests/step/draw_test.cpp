// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/draw.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/step/memory.h"
#include "stepforge/step/simulate_pipeline.h"
#include "tests/step/pipeline.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

int64_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(OperationTable, ShowsAllOperationsOnRequest) {
  const StepProgram program = build_step(small_model(8), small_options(5));
  const std::string table = operation_table(program, {true, true});
  EXPECT_EQ(lines(table), static_cast<int64_t>(program.operations.size()) + 1);
}

TEST(OperationTable, FoldsLayersAndMicroBatches) {
  const StepProgram program = build_step(small_model(126), small_options(32));
  const std::string table = operation_table(program);
  EXPECT_LT(lines(table), 40);
  EXPECT_CONTAINS(table, "the same for micro-batches 1 to 31");
  EXPECT_CONTAINS(table, "forward layers.125 m0 graph");
  EXPECT_CONTAINS(table, "x 124 more of its kind");
  EXPECT_CONTAINS(table, "check_finite");
}

TEST(OperationTable, FoldsPatternsOfSeveralOperations) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  const std::string table = operation_table(build_step(small_model(20), options));
  EXPECT_CONTAINS(table, "more of these 4 operations");
}

TEST(OperationTable, ShowsIndexLaneOperationAndLiveBytes) {
  RankOptions options = small_options(1);
  const StepProgram program = build_step(small_model(1), options);
  const std::string table = operation_table(program);
  const int64_t live = account(program).live_after[3];
  EXPECT_CONTAINS(table, "      3  compute  load_batch m0");
  EXPECT_CONTAINS(table, human_bytes(live));
}

TEST(TraceJson, HasOneEventPerOperationAndEndsWithThePersistentBytes) {
  RankOptions options = small_options(2);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  const StepProgram program = build_step(small_model(2), options);
  const Json trace =
      parse_json(trace_json(program, {{"predicted", simulate(program, MachineModel{})}}), "trace");
  std::size_t operations = 0;
  int64_t live = 0;
  double last_counter = -1;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      ++operations;
      EXPECT_GT(event.at("dur").get<double>(), 0);
    } else if (event.at("ph") == "C") {
      EXPECT_GE(event.at("ts").get<double>(), last_counter);
      last_counter = event.at("ts").get<double>();
      live = event.at("args").at("bytes").get<int64_t>();
    }
  }
  EXPECT_EQ(operations, program.operations.size());
  EXPECT_EQ(live, account(program).persistent_bytes());
}

TEST(TraceJson, HasAnArrowForEachNeed) {
  const std::vector<StepProgram> programs = pipeline(ScheduleKind::one_f_one_b, 2, 1, 2, 4);
  const PipelineRun run = simulate_pipeline(programs, MachineModel{});
  const Json trace = parse_json(trace_json(programs, "predicted", run.times), "trace");
  std::map<std::pair<int, int>, const Json*> operations;
  std::map<int64_t, std::pair<const Json*, const Json*>> arrows;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X")
      operations[{event.at("pid").get<int>(), event.at("args").at("index").get<int>()}] = &event;
    if (event.at("ph") == "s") arrows[event.at("id").get<int64_t>()].first = &event;
    if (event.at("ph") == "f") arrows[event.at("id").get<int64_t>()].second = &event;
  }
  const auto around = [](const Json& slice, const Json& end) {
    const double start = slice.at("ts").get<double>();
    const double time = end.at("ts").get<double>();
    return slice.at("pid") == end.at("pid") && slice.at("tid") == end.at("tid") && start <= time &&
           time < start + slice.at("dur").get<double>();
  };
  auto arrow = arrows.begin();
  for (std::size_t p = 0; p < programs.size(); ++p) {
    for (std::size_t i = 0; i < programs[p].operations.size(); ++i) {
      for (const int need : programs[p].operations[i].needs) {
        ASSERT_NE(arrow, arrows.end());
        const auto& [from, to] = arrow->second;
        ASSERT_TRUE(from != nullptr && to != nullptr);
        EXPECT_TRUE(around(*operations.at({programs[p].rank, need}), *from));
        EXPECT_TRUE(around(*operations.at({programs[p].rank, static_cast<int>(i)}), *to));
        ++arrow;
      }
    }
  }
  EXPECT_EQ(arrow, arrows.end());
}

TEST(TraceJson, HasAProcessForEachRankOfAPipeline) {
  const std::vector<StepProgram> programs = pipeline(ScheduleKind::one_f_one_b, 2, 1, 2, 4);
  const PipelineRun run = simulate_pipeline(programs, MachineModel{});
  const Json trace = parse_json(trace_json(programs, "predicted", run.times), "trace");
  std::map<int, std::size_t> operations;
  for (const Json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") ++operations[event.at("pid").get<int>()];
  EXPECT_EQ(operations, (std::map<int, std::size_t>{{0, programs[0].operations.size()},
                                                    {1, programs[1].operations.size()}}));
}

}  // namespace
}  // namespace stepforge::testing
