// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace stepforge {

namespace {

/// The scheduler's weight of a thread falls by a fifth with each step.
constexpr int kStepsOfNiceness = 10;

}  // namespace

void lower_thread_priority() {
  const auto thread = static_cast<id_t>(gettid());  // Linux has a niceness for each thread
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kStepsOfNiceness);
}

}  // namespace stepforge
