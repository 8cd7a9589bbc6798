// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/sink.h"

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// The calls of a sink; outlives the sink.
struct Seen {
  std::vector<int64_t> steps;
  int flushes = 0;
};

class RecordingSink : public MetricsSink {
 public:
  explicit RecordingSink(Seen& seen) : seen_(seen) {}
  std::string name() const override { return "recording"; }
  void write(const MetricsRecord& record) override { seen_.steps.push_back(record.step); }
  void flush() override { ++seen_.flushes; }

 private:
  Seen& seen_;
};

class FailingSink : public MetricsSink {
 public:
  explicit FailingSink(int& calls) : calls_(calls) {}
  std::string name() const override { return "failing"; }
  void write(const MetricsRecord&) override {
    ++calls_;
    throw std::runtime_error("no route to host");
  }

 private:
  int& calls_;
};

/// Holds every write until release().
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_visitor() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

class GatedSink : public MetricsSink {
 public:
  GatedSink(Gate& gate, Seen& seen) : gate_(gate), seen_(seen) {}
  std::string name() const override { return "gated"; }
  void write(const MetricsRecord& record) override {
    gate_.pass();
    seen_.steps.push_back(record.step);
  }

 private:
  Gate& gate_;
  Seen& seen_;
};

template <typename... Sinks>
std::vector<std::unique_ptr<MetricsSink>> sinks_of(std::unique_ptr<Sinks>... sinks) {
  std::vector<std::unique_ptr<MetricsSink>> all;
  (all.push_back(std::move(sinks)), ...);
  return all;
}

MetricsRecord record_of_step(int64_t step) {
  return {"train", step, 0, {}};
}

TEST(SinkQueue, DeliversInOrderToEverySink) {
  Logger logger(LogLevel::error);
  Seen first;
  Seen second;
  {
    SinkQueue queue(sinks_of(std::make_unique<RecordingSink>(first), std::make_unique<RecordingSink>(second)),
                    logger);
    for (int64_t step = 1; step <= 100; ++step) queue.write(record_of_step(step));
  }
  ASSERT_EQ(first.steps.size(), 100U);
  for (int64_t step = 1; step <= 100; ++step) EXPECT_EQ(first.steps[static_cast<size_t>(step - 1)], step);
  EXPECT_EQ(second.steps, first.steps);
  EXPECT_EQ(first.flushes, 1);
}

TEST(SinkQueue, FlushReturnsAfterEverythingBeforeItIsWritten) {
  Logger logger(LogLevel::error);
  Seen seen;
  SinkQueue queue(sinks_of(std::make_unique<RecordingSink>(seen)), logger);
  for (int64_t step = 1; step <= 50; ++step) queue.write(record_of_step(step));
  queue.flush();
  EXPECT_EQ(seen.steps.size(), 50U);
  EXPECT_EQ(seen.flushes, 1);
}

TEST(SinkQueue, DropsAndCountsInsteadOfWaitingForASlowSink) {
  Seen seen;
  Gate gate;
  ::testing::internal::CaptureStderr();
  {
    Logger logger(LogLevel::warning);
    SinkQueue queue(sinks_of(std::make_unique<GatedSink>(gate, seen)), logger, 2);
    queue.write(record_of_step(1));
    gate.wait_for_visitor();
    // One record is inside the sink, two wait in the queue, three are dropped.
    for (int64_t step = 2; step <= 6; ++step) queue.write(record_of_step(step));
    EXPECT_EQ(queue.dropped(), 3);
    gate.release();
  }
  EXPECT_EQ(seen.steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_CONTAINS(::testing::internal::GetCapturedStderr(), "3 metrics records were dropped");
}

TEST(SinkQueue, ASinkThatThrowsIsDisabledAloneAndOnce) {
  Seen seen;
  int calls = 0;
  ::testing::internal::CaptureStderr();
  {
    Logger logger(LogLevel::error);
    SinkQueue queue(sinks_of(std::make_unique<FailingSink>(calls), std::make_unique<RecordingSink>(seen)),
                    logger);
    for (int64_t step = 1; step <= 3; ++step) queue.write(record_of_step(step));
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(seen.steps.size(), 3U);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_CONTAINS(log, "the metrics sink failing is disabled for the rest of this run: no route to host")
      << log;
}

}  // namespace
}  // namespace stepforge::testing
