#include "stepforge/train/lanes.h"

#include <algorithm>
#include <utility>

#include <omp.h>

namespace stepforge {

namespace {
constexpr auto kCompute = static_cast<std::size_t>(Lane::compute);

/// A lane that must wait offers its core so often before it sleeps: waking up takes longer than most waits.
constexpr int kYields = 100;
}  // namespace

Lanes::Lanes(const StepProgram& program) {
  std::vector<Need> finished_by;  // of each operation: what its having finished looks like
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
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (lane != kCompute && !operations_.at(lane).empty())
      threads_.emplace_back([this, lane] { serve(lane); });
  }
}

Lanes::~Lanes() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Lanes::run(const Execute& execute, const OnFailure& on_failure) {
  {
    const std::lock_guard lock(mutex_);
    execute_ = &execute;
    on_failure_ = &on_failure;
    for (Progress& progress : progress_) progress.finished = 0;
    failure_ = nullptr;
    lanes_at_work_ = threads_.size();
    ++run_;
  }
  changed_.notify_all();
  run_lane(kCompute);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return lanes_at_work_ == 0; });
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Lanes::serve(std::size_t lane) {
  omp_set_num_threads(1);  // its copies and sums run beside the compute lane's threads
  std::size_t served = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || run_ > served; });
      if (stopping_) return;
      served = run_;
    }
    run_lane(lane);
    {
      const std::lock_guard lock(mutex_);
      --lanes_at_work_;
    }
    changed_.notify_all();
  }
}

void Lanes::run_lane(std::size_t lane) {
  std::atomic<uint32_t>& finished = progress_.at(lane).finished;
  for (const std::size_t i : operations_.at(lane)) {
    const std::vector<Need>& needs = needs_[i];
    const bool ready =
        std::all_of(needs.begin(), needs.end(), [this](const Need& need) { return wait_for(need); });
    if (!ready || (finished.load(std::memory_order_acquire) & kFailed) != 0) return;
    try {
      (*execute_)(i);
    } catch (const std::exception& failure) {
      return fail(std::current_exception(), failure.what());
    }
    finished.fetch_add(1, std::memory_order_release);
    finished.notify_all();
  }
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

void Lanes::fail(std::exception_ptr failure, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;  // it follows from the first
    failure_ = std::move(failure);
  }
  for (Progress& progress : progress_) {
    progress.finished.fetch_or(kFailed, std::memory_order_release);
    progress.finished.notify_all();
  }
  (*on_failure_)(reason);
}

}  // namespace stepforge
