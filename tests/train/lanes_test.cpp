// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/lanes.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

using Order = std::vector<std::size_t>;

/// compute 0, gather 1, compute 2 (needs 1), reduce 3 (needs 2), compute 4, compute 5 (needs 3).
StepProgram program(bool of_many_ranks) {
  StepProgram program;
  if (of_many_ranks) program.groups.push_back({"dp_shard", {0, 1}});
  const auto add = [&](Lane lane, std::vector<int> needs) {
    Operation operation;
    operation.lane = lane;
    operation.needs = std::move(needs);
    program.operations.push_back(operation);
  };
  add(Lane::compute, {});
  add(Lane::gather, {});
  add(Lane::compute, {1});
  add(Lane::reduce, {2});
  add(Lane::compute, {});
  add(Lane::compute, {3});
  return program;
}

TEST(Lanes, OnOneRankRunInListOrderOnTheCallingThread) {
  const StepProgram one = program(false);
  Lanes lanes(one);
  Order order;
  lanes.run(
      [&, caller = std::this_thread::get_id()](std::size_t i) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        order.push_back(i);
      },
      [](const std::string&) {});
  EXPECT_EQ(order, (Order{0, 1, 2, 3, 4, 5}));
}

TEST(Lanes, AnOperationStartsWhenAllItNeedsHaveFinished) {
  const StepProgram many = program(true);
  Lanes lanes(many);
  for (int run = 0; run < 200; ++run) {
    std::array<std::atomic<bool>, 6> finished{};
    std::atomic<int> count{0};
    lanes.run(
        [&](std::size_t i) {
          for (const int needed : many.operations[i].needs)
            EXPECT_TRUE(finished.at(static_cast<size_t>(needed)));
          finished.at(i) = true;
          ++count;
        },
        [](const std::string&) {});
    EXPECT_EQ(count, 6);
  }
}

TEST(Lanes, RunConcurrently) {
  const StepProgram many = program(true);
  Lanes lanes(many);
  // Operation 4 of the compute lane and 3 of the reduce lane can only end while both run.
  std::latch both(2);
  lanes.run(
      [&](std::size_t i) {
        if (i == 3 || i == 4) both.arrive_and_wait();
      },
      [](const std::string&) {});
}

TEST(Lanes, AFailureStopsTheRunIsReportedOnceAndRethrown) {
  const StepProgram many = program(true);
  Lanes lanes(many);
  std::atomic<bool> woken{false};
  std::vector<std::string> reasons;
  std::array<std::atomic<bool>, 6> ran{};
  const auto execute = [&](std::size_t i) {
    ran.at(i) = true;
    if (i == 3) {  // waits for other ranks until the failure wakes it
      while (!woken) std::this_thread::yield();
      throw std::runtime_error("woken");
    }
    if (i == 4) throw std::runtime_error("out of memory");
  };
  const auto on_failure = [&](const std::string& reason) {
    reasons.push_back(reason);
    woken = true;
  };
  try {
    lanes.run(execute, on_failure);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& failure) {
    EXPECT_STREQ(failure.what(), "out of memory");
  }
  EXPECT_EQ(reasons, std::vector<std::string>{"out of memory"});
  EXPECT_FALSE(ran[5]);
  // The next run is not affected.
  std::atomic<int> count{0};
  lanes.run([&](std::size_t) { ++count; }, on_failure);
  EXPECT_EQ(count, 6);
}

}  // namespace
}  // namespace stepforge::testing
