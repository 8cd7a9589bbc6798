// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/host_limits.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include <sys/resource.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/machine.h"

namespace stepforge {

namespace {

/// More would spend their time waiting for each other.
constexpr int64_t kRanksPerCore = 64;
/// Every program that computes needs at least this much.
constexpr int64_t kRankBytes = int64_t{32} << 20;
/// Files of the launcher itself, and those that it needs for a moment to start a rank.
constexpr int64_t kOwnFiles = 32;
/// Files for each rank: two pipes and a log.
constexpr int64_t kRankFiles = 3;

int64_t soft_limit(__rlimit_resource resource) {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return kUnlimited;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(kUnlimited)));
}

struct Bound {
  int64_t ranks;
  std::string reason;
};

}  // namespace

HostLimits read_host_limits() {
  const MachineFacts facts = read_machine_facts();
  return {std::max(1, facts.usable_threads), facts.memory.total, soft_limit(RLIMIT_NOFILE),
          soft_limit(RLIMIT_NPROC)};
}

void check_ranks_of_host(int ranks, const HostLimits& limits) {
  const int64_t memory = limits.memory > 0 ? limits.memory : std::numeric_limits<int64_t>::max();
  const std::array<Bound, 4> bounds{{
      {limits.cores * kRanksPerCore, format("{} on each of its {} cores", kRanksPerCore, limits.cores)},
      {memory / kRankBytes, format("{} of memory for each", human_bytes(kRankBytes))},
      {std::max<int64_t>(0, limits.open_files - kOwnFiles) / kRankFiles,
       format("{} of {} open files for each; raise `ulimit -n`", kRankFiles, limits.open_files)},
      {limits.processes, "the processes of this user; raise `ulimit -u`"},
  }};
  const Bound& least = *std::ranges::min_element(bounds, {}, &Bound::ranks);
  if (ranks <= least.ranks) return;
  throw UsageError(
      format("--nproc {}: this host can run at most {} ranks ({})", ranks, least.ranks, least.reason));
}

}  // namespace stepforge
