// SPDX-License-Identifier: Apache-2.0
// Destinations of metrics records. The step puts a record into the queue and continues; one thread writes to
// all sinks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stepforge/base/log.h"
#include "stepforge/base/threads.h"
#include "stepforge/metrics/record.h"

namespace stepforge {

/// A destination of records, called from one thread at a time. An exception from any member disables the sink
/// for the rest of the run; a sink that can recover (from a full disk) must handle the failure itself.
class MetricsSink {
 public:
  MetricsSink() = default;
  virtual ~MetricsSink() = default;
  MetricsSink(const MetricsSink&) = delete;
  MetricsSink& operator=(const MetricsSink&) = delete;

  /// For messages: "metrics.jsonl", "console".
  virtual std::string name() const = 0;
  virtual void write(const MetricsRecord& record) = 0;
  /// Returns when everything written so far has reached its destination.
  virtual void flush() {}
};

/// Writes records to sinks from its own thread. write() never waits: when the queue is full the record is
/// dropped, and the number of dropped records is logged at the end. A sink that throws is disabled with an
/// error line; the others continue.
class SinkQueue {
 public:
  /// `logger` must outlive the queue.
  SinkQueue(std::vector<std::unique_ptr<MetricsSink>> sinks, Logger& logger, size_t capacity = 1024);
  /// Writes the records that are left and flushes the sinks.
  ~SinkQueue();
  SinkQueue(const SinkQueue&) = delete;
  SinkQueue& operator=(const SinkQueue&) = delete;

  void write(MetricsRecord record);
  /// Waits until every record accepted before the call has been written and the sinks are flushed.
  void flush();
  /// The number of records dropped because the queue was full.
  int64_t dropped() const { return dropped_; }

 private:
  struct Item {
    std::optional<MetricsRecord> record;
    /// Set for a flush; owned by the waiting caller.
    std::promise<void>* flushed = nullptr;
  };
  void run();
  template <typename Action>
  void each_sink(const Action& action);

  Logger& logger_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
  BoundedQueue<Item> queue_;
  std::atomic<int64_t> dropped_{0};
  std::thread thread_;
};

}  // namespace stepforge
