// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/lanes.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace stepforge {

namespace {
constexpr auto kCompute = static_cast<std::size_t>(Lane::compute);

/// How often a waiting lane yields its core before it sleeps: waking up takes longer than most waits.
constexpr int kYields = 100;
}  // namespace

Lanes::Lanes(const StepProgram& program, const ModelStore* store) {
  if (store != nullptr && !store->device().is_cpu()) {
    streams_.emplace(program, *store);
    waits_.resize(program.operations.size());
    return;
  }
  std::vector<Need> finished_by;  // per operation: the count of its lane once it has finished
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    const auto lane = program.groups.empty() ? kCompute : static_cast<std::size_t>(operation.lane);
    operations_.at(lane).push_back(i);
    finished_by.push_back({lane, static_cast<uint32_t>(operations_.at(lane).size())});
    std::vector<Need>& needs = needs_.emplace_back();
    for (const int needed : operation.needs) {
      const Need& need = finished_by[static_cast<std::size_t>(needed)];
      if (need.lane != lane) needs.push_back(need);
    }
  }
  waits_.resize(needs_.size());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (lane != kCompute && !operations_.at(lane).empty())
      workers_.emplace_back(lane, std::make_unique<LaneWorker>(/*threaded=*/true));
  }
}

void Lanes::run(const Execute& execute, const OnFailure& on_failure) {
  if (streams_) {
    try {
      return streams_->run(execute);
    } catch (const std::exception& failure) {
      on_failure(failure.what());
      throw;
    }
  }
  for (Progress& progress : progress_) progress.finished = 0;
  std::ranges::fill(waits_, std::chrono::nanoseconds(0));
  std::vector<LaneTask> tasks;
  for (const auto& [lane, worker] : workers_) {
    tasks.push_back(worker->submit([&, lane = lane] { run_lane(lane, execute, on_failure); }));
  }
  run_lane(kCompute, execute, on_failure);
  for (LaneTask& task : tasks) task.wait();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Lanes::run_lane(std::size_t lane, const Execute& execute, const OnFailure& on_failure) {
  std::atomic<uint32_t>& finished = progress_.at(lane).finished;
  for (const std::size_t i : operations_.at(lane)) {
    if (!wait_for_needs(lane, i) || (finished.load(std::memory_order_acquire) & kFailed) != 0) return;
    try {
      execute(i);
    } catch (const std::exception& failure) {
      return fail(std::current_exception(), failure.what(), on_failure);
    } catch (...) {
      return fail(std::current_exception(), "unknown exception", on_failure);
    }
    finished.fetch_add(1, std::memory_order_release);
    finished.notify_all();
  }
}

bool Lanes::wait_for_needs(std::size_t lane, std::size_t operation) {
  const std::vector<Need>& needs = needs_[operation];
  if (needs.empty()) return true;
  const auto began = std::chrono::steady_clock::now();
  const bool ready = std::ranges::all_of(needs, [this](const Need& need) { return wait_for(need); });
  if (lane == kCompute) waits_[operation] = std::chrono::steady_clock::now() - began;
  return ready;
}

bool Lanes::wait_for(const Need& need) const {
  const std::atomic<uint32_t>& finished = progress_.at(need.lane).finished;
  for (int yields = 0;; ++yields) {
    const uint32_t seen = finished.load(std::memory_order_acquire);
    if ((seen & kFailed) != 0) return false;
    if (seen >= need.count) return true;
    if (yields < kYields) {
      std::this_thread::yield();
    } else {
      finished.wait(seen, std::memory_order_acquire);
    }
  }
}

void Lanes::fail(std::exception_ptr failure, const std::string& reason, const OnFailure& on_failure) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_ != nullptr) return;  // a consequence of the first
    failure_ = std::move(failure);
  }
  for (Progress& progress : progress_) {
    progress.finished.fetch_or(kFailed, std::memory_order_release);
    progress.finished.notify_all();
  }
  on_failure(reason);
}

}  // namespace stepforge
