// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include <sched.h>

namespace stepforge {

int hardware_threads() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  // The machine has more cores than cpu_set_t holds.
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void parallel_for_each(int64_t count, int workers, const std::function<void(int64_t)>& body) {
  if (workers <= 0) workers = hardware_threads();
  workers = static_cast<int>(std::min<int64_t>(workers, count));
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  threads.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace stepforge
