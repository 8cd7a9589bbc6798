// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/threads.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

namespace stepforge::testing {
namespace {

TEST(BoundedQueue, KeepsTheOrder) {
  BoundedQueue<int> queue(3);
  std::jthread producer([&] {
    for (int i = 0; i < 1000; ++i) queue.push(i);
    queue.close();
  });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(queue.pop(), i);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, TryPushRefusesWhenFullOrClosed) {
  BoundedQueue<int> queue(1);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_FALSE(queue.try_push(2));
  EXPECT_EQ(queue.pop(), 1);
  queue.close();
  EXPECT_FALSE(queue.try_push(3));
}

/// Runs `wait` in a thread and closes the queue when the thread is most likely asleep in it; 20 times, to
/// make that certain enough. A thread that is not woken hangs the test.
template <typename Wait>
void close_while_a_thread_waits(bool full, Wait wait) {
  for (int i = 0; i < 20; ++i) {
    BoundedQueue<int> queue(1);
    if (full) queue.push(1);
    std::atomic<bool> started{false};
    const std::jthread thread([&] {
      started = true;
      wait(queue);
    });
    while (!started) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    queue.close();
  }
}

TEST(BoundedQueue, CloseWakesAWaitingProducer) {
  close_while_a_thread_waits(true, [](BoundedQueue<int>& queue) { EXPECT_FALSE(queue.push(2)); });
}

TEST(BoundedQueue, CloseWakesAWaitingConsumer) {
  close_while_a_thread_waits(false, [](BoundedQueue<int>& queue) { EXPECT_EQ(queue.pop(), std::nullopt); });
}

TEST(BoundedQueue, AClosedQueueReturnsItsRemainingValues) {
  BoundedQueue<int> queue(2);
  queue.push(1);
  queue.push(2);
  queue.close();
  EXPECT_FALSE(queue.push(3));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(ParallelForEach, VisitsEveryIndexOnce) {
  for (const int workers : {0, 1, 2, 7}) {
    std::vector<std::atomic<int>> visits(1000);
    parallel_for_each(1000, workers, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
    for (const auto& count : visits) EXPECT_EQ(count, 1);
  }
}

TEST(ParallelForEach, DoesNothingForAnEmptyRange) {
  parallel_for_each(0, 4, [](int64_t) { FAIL(); });
}

TEST(ParallelForEach, RethrowsTheFirstFailureAndStops) {
  std::atomic<int64_t> visits{0};
  EXPECT_THROW(parallel_for_each(1'000'000'000, 4,
                                 [&](int64_t) {
                                   ++visits;
                                   throw std::runtime_error("broken");
                                 }),
               std::runtime_error);
  EXPECT_LE(visits, 4);
}

TEST(HardwareThreads, CountsTheCoresThatTheThreadMayRunOn) {
  std::thread([] {
    cpu_set_t cores;
    ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
    EXPECT_EQ(hardware_threads(), CPU_COUNT(&cores));
    const int mine = sched_getcpu();
    CPU_ZERO(&cores);
    CPU_SET(mine, &cores);
    ASSERT_EQ(sched_setaffinity(0, sizeof cores, &cores), 0);
    EXPECT_EQ(hardware_threads(), 1);
  }).join();
}

}  // namespace
}  // namespace stepforge::testing
