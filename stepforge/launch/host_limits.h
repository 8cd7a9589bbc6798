// SPDX-License-Identifier: Apache-2.0
// How many ranks a host can run. A number that is far too large is refused before the first rank starts.
#pragma once

#include <cstdint>

namespace stepforge {

struct HostLimits {
  int cores = 1;
  int64_t memory = 0;      ///< bytes that processes may use; 0: unknown
  int64_t open_files = 0;  ///< of this process, `ulimit -n`
  int64_t processes = 0;   ///< of this user, `ulimit -u`
};

/// The limits of this process and host.
HostLimits read_host_limits();

/// Throws UsageError if `ranks` (--nproc) is too large, with the largest possible number and the reason.
void check_ranks_of_host(int ranks, const HostLimits& limits);

}  // namespace stepforge
