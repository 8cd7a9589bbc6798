// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/thread_priority.h"

#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace stepforge::testing {
namespace {

int niceness() {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
}

TEST(ThreadPriority, AThreadAndThoseThatItStartsGiveWayAndNoOther) {
  const int before = niceness();
  if (before > 9) GTEST_SKIP() << "the tests run at the lowest priority already";
  int lowered = before;
  int started = before;
  std::thread([&] {
    lower_thread_priority();
    lowered = niceness();
    std::thread([&] { started = niceness(); }).join();
  }).join();
  EXPECT_GT(lowered, before);
  EXPECT_EQ(started, lowered);
  EXPECT_EQ(niceness(), before);
}

}  // namespace
}  // namespace stepforge::testing
