#include "base/threads.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stepforge {
namespace {

TEST(BoundedQueue, HandsOverInOrder) {
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

TEST(BoundedQueue, CloseWakesAWaitingProducer) {
  BoundedQueue<int> queue(1);
  queue.push(1);
  std::atomic<bool> accepted{true};
  std::jthread producer([&] { accepted = queue.push(2); });
  queue.close();
  producer.join();
  EXPECT_FALSE(accepted);
}

TEST(BoundedQueue, CloseWakesAWaitingConsumer) {
  BoundedQueue<int> queue(1);
  std::optional<int> got = 1;
  std::jthread consumer([&] { got = queue.pop(); });
  queue.close();
  consumer.join();
  EXPECT_EQ(got, std::nullopt);
}

TEST(BoundedQueue, AClosedQueueStillGivesWhatItHolds) {
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

TEST(HardwareThreads, IsAtLeastOne) {
  EXPECT_GE(hardware_threads(), 1);
}

}  // namespace
}  // namespace stepforge
