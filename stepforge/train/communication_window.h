// SPDX-License-Identifier: Apache-2.0
// What the ranks of each group exchanged and waited for since the last log line.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/metrics/record.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// What the steps between two log lines exchanged over each group; validation and samples do not count.
class CommunicationWindow {
 public:
  void begin_step(const GroupCommunicators& groups) { add(groups, -1.0); }
  void end_step(const GroupCommunicators& groups) { add(groups, 1.0); }
  /// Adds the means per step to `record` and starts again at zero.
  void take(MetricsRecord& record, const GroupCommunicators& groups, int64_t steps);

 private:
  struct Total {
    double bytes = 0;
    double seconds = 0;
  };

  void add(const GroupCommunicators& groups, double sign);

  std::vector<Total> totals_;  ///< of each group
};

}  // namespace stepforge
