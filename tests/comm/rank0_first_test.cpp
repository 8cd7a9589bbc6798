// SPDX-License-Identifier: Apache-2.0
// Ranks wait for rank 0's work as long as it makes progress, and no longer.
#include "stepforge/comm/rank0_first.h"

#include <atomic>

#include <gtest/gtest.h>

#include "tests/support/memory_engine.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

class Rank0First : public ::testing::TestWithParam<RankRunner> {};
INSTANTIATE_TEST_SUITE_P(Of, Rank0First, ::testing::Values(as_threads(), as_processes(), as_messages()),
                         [](const auto& info) { return info.param.name; });

constexpr CommDeadlines kShortDeadlines{60, 0.5};

TEST_P(Rank0First, OthersWaitLongerThanTheDeadlineWhileTheWorkReportsProgress) {
  const auto results = GetParam().run(
      3,
      [](World& world) {
        const auto all = world.group("all", {0, 1, 2});
        std::string done;
        rank0_first(all.get(), [&](const ReportProgress& report) {
          for (int i = 0; i < 150 && world.rank() == 0; ++i) {
            usleep(10000);
            report();
          }
          done = "done";
        });
        all->barrier();
        return done;
      },
      kShortDeadlines);
  EXPECT_EQ(results, (std::vector<std::string>{"done", "done", "done"}));
}

TEST_P(Rank0First, OthersThrowOnceTheWorkReportsNoProgress) {
  const auto results = GetParam().run(
      2,
      [](World& world) {
        const auto all = world.group("all", {0, 1});
        if (world.rank() == 1) {
          rank0_first(all.get(), [](const ReportProgress&) {});
          return std::string("went through");
        }
        // Rank 0 stays until rank 1 has ended the group.
        rank0_first(all.get(), [&](const ReportProgress& report) {
          report();
          for (int i = 0; i < 400; ++i) usleep(10000);
        });
        return std::string("went through");
      },
      kShortDeadlines);
  EXPECT_CONTAINS(results[1], "PeerError: no answer within 0.5 s: rank 1 waits in broadcast");
  EXPECT_CONTAINS(results[0], "PeerError: no answer within 0.5 s: rank 1 waits in broadcast");
}

TEST_P(Rank0First, Rank0FinishesBeforeTheOthersStart) {
  const Marks marks;
  const auto results = GetParam().run(3,
                                      [&](World& world) {
                                        const auto all = world.group("all", {0, 1, 2});
                                        bool found = false;
                                        rank0_first(all.get(), [&](const ReportProgress&) {
                                          if (world.rank() == 0) marks.set("work of rank 0");
                                          found = marks.has("work of rank 0");
                                        });
                                        return std::string(found ? "found" : "missing");
                                      },
                                      {60, 60});
  EXPECT_EQ(results, (std::vector<std::string>{"found", "found", "found"}));
}

TEST(Rank0FirstAlone, RunsTheWork) {
  int calls = 0;
  rank0_first(nullptr, [&](const ReportProgress& report) {
    report();
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace stepforge::testing
