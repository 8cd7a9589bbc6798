// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/sink.h"

#include <chrono>
#include <exception>
#include <utility>

namespace stepforge {

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

SinkQueue::SinkQueue(std::vector<std::unique_ptr<MetricsSink>> sinks, Logger& logger, size_t capacity)
    : logger_(logger), sinks_(std::move(sinks)), queue_(capacity), thread_([this] { run(); }) {}

SinkQueue::~SinkQueue() {
  queue_.close();
  thread_.join();
  if (dropped_ > 0) {
    logger_.warning(
        "{} metrics records were dropped because a sink was slower than training; raise metrics.log_freq",
        dropped_.load());
  }
}

void SinkQueue::write(MetricsRecord record) {
  if (!queue_.try_push(Item{std::move(record), nullptr})) ++dropped_;
}

void SinkQueue::flush() {
  std::promise<void> flushed;
  std::future<void> done = flushed.get_future();
  if (queue_.push(Item{std::nullopt, &flushed})) done.wait();
}

template <typename Action>
void SinkQueue::each_sink(const Action& action) {
  for (auto& sink : sinks_) {
    if (!sink) continue;
    try {
      action(*sink);
    } catch (const std::exception& failure) {
      logger_.error("the metrics sink {} is disabled for the rest of this run: {}", sink->name(),
                    failure.what());
      sink.reset();
    }
  }
}

void SinkQueue::run() {
  while (const std::optional<Item> item = queue_.pop()) {
    if (item->record) each_sink([&](MetricsSink& sink) { sink.write(*item->record); });
    if (item->flushed != nullptr) {
      each_sink([](MetricsSink& sink) { sink.flush(); });
      item->flushed->set_value();
    }
  }
  each_sink([](MetricsSink& sink) { sink.flush(); });
}

}  // namespace stepforge
