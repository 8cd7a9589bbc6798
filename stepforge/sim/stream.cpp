// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/stream.h"

#include <chrono>
#include <exception>
#include <utility>

#include "stepforge/base/random.h"

namespace stepforge::sim {

Stream::Stream(int number, int device, const Delays& delays)
    : number_(number), device_(device), delays_(delays), thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Stream::push(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Stream::wait(uint32_t position) const {
  for (uint32_t done = done_.load(std::memory_order_acquire); done < position;
       done = done_.load(std::memory_order_acquire))
    done_.wait(done, std::memory_order_acquire);
}

std::string Stream::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, "");
}

void Stream::run(const std::function<void()>& work) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
  }
  try {
    work();
  } catch (const std::exception& failure) {
    const std::lock_guard lock(mutex_);
    failure_ = failure.what();
  }
}

void Stream::delay() {
  if (delays_.most_microseconds == 0) return;
  const uint64_t drawn = mix_bits(delays_.seed + mix_bits(static_cast<uint64_t>(number_)) + ++delayed_);
  if (drawn % 4 != 0) return;  // most work follows at once, or streams would stay side by side
  std::this_thread::sleep_for(
      std::chrono::microseconds((drawn >> 8) % static_cast<uint64_t>(delays_.most_microseconds)));
}

void Stream::serve() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    delay();
    run(work);
    work = {};  // before the work counts as finished
    done_.fetch_add(1, std::memory_order_release);
    done_.notify_all();
  }
}

}  // namespace stepforge::sim
