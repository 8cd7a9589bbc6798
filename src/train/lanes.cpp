#include "train/lanes.h"

#include <utility>

#include <omp.h>

namespace stepforge {

namespace {
constexpr auto kCompute = static_cast<std::size_t>(Lane::compute);
}

Lanes::Lanes(const StepProgram& program) : program_(program) {
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const auto lane = static_cast<std::size_t>(program.operations[i].lane);
    operations_.at(program.groups.empty() ? kCompute : lane).push_back(i);
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
    done_.assign(program_.operations.size(), false);
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
  for (const std::size_t i : operations_.at(lane)) {
    try {
      if (!wait_for_needs(program_.operations[i])) return;
      (*execute_)(i);
    } catch (const std::exception& failure) {
      return fail(std::current_exception(), failure.what());
    }
    finish(i);
  }
}

bool Lanes::wait_for_needs(const Operation& operation) {
  if (threads_.empty()) return true;
  std::unique_lock lock(mutex_);
  const auto ready = [&] {
    for (const int needed : operation.needs) {
      if (!done_[static_cast<std::size_t>(needed)]) return false;
    }
    return true;
  };
  changed_.wait(lock, [&] { return failure_ != nullptr || ready(); });
  return failure_ == nullptr;
}

void Lanes::finish(std::size_t operation) {
  if (threads_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    done_[operation] = true;
  }
  changed_.notify_all();
}

void Lanes::fail(std::exception_ptr failure, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;  // it follows from the first
    failure_ = std::move(failure);
  }
  changed_.notify_all();
  (*on_failure_)(reason);
}

}  // namespace stepforge
