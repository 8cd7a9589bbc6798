// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/host_limits.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr HostLimits kRoomy{16, int64_t{64} << 30, 65536, 65536};

std::string refusal(const HostLimits& limits) {
  return message_of<UsageError>([&] { check_ranks_of_host(100000, limits); });
}

TEST(HostLimits, ALargerNumberOfRanksThanTheScarcestAllowsIsRefusedWithThatNumber) {
  EXPECT_EQ(refusal(kRoomy),
            "--nproc 100000: this host can run at most 1024 ranks (64 on each of its 16 cores)");
  HostLimits limits = kRoomy;
  limits.memory = int64_t{1} << 30;
  EXPECT_EQ(refusal(limits),
            "--nproc 100000: this host can run at most 32 ranks (32.0 MiB of memory for each)");
  limits = kRoomy;
  limits.open_files = 256;
  EXPECT_EQ(
      refusal(limits),
      "--nproc 100000: this host can run at most 74 ranks (3 of 256 open files for each; raise `ulimit -n`)");
  limits = kRoomy;
  limits.processes = 20;
  EXPECT_EQ(
      refusal(limits),
      "--nproc 100000: this host can run at most 20 ranks (the processes of this user; raise `ulimit -u`)");
}

TEST(HostLimits, AsManyAsAreAllowedAreAccepted) {
  EXPECT_NO_THROW(check_ranks_of_host(1024, kRoomy));
  EXPECT_THROW(check_ranks_of_host(1025, kRoomy), UsageError);
}

TEST(HostLimits, AreThoseOfThisProcess) {
  const HostLimits limits = read_host_limits();
  EXPECT_GE(limits.cores, 1);
  EXPECT_GT(limits.memory, 0);
  EXPECT_GT(limits.open_files, 32);
  EXPECT_NO_THROW(check_ranks_of_host(2, limits));
}

}  // namespace
}  // namespace stepforge::testing
