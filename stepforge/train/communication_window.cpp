// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/communication_window.h"

#include <string>

#include "stepforge/metrics/names.h"

namespace stepforge {

void CommunicationWindow::take(MetricsRecord& record, const GroupCommunicators& groups, int64_t steps) {
  for (size_t g = 0; g < totals_.size(); ++g) {
    const std::string& axis = groups.layout().groups[g].name;
    record.add(metric::comm_bytes(axis), totals_[g].bytes / static_cast<double>(steps) / (1 << 30));
    record.add(metric::comm_wait(axis), totals_[g].seconds / static_cast<double>(steps));
  }
  totals_.clear();
}

void CommunicationWindow::add(const GroupCommunicators& groups, double sign) {
  totals_.resize(groups.layout().groups.size());
  for (size_t g = 0; g < totals_.size(); ++g) {
    const GroupMeter& meter = groups.meter(static_cast<int>(g));
    totals_[g].bytes += sign * static_cast<double>(meter.bytes());
    totals_[g].seconds += sign * meter.wait_seconds();
  }
}

}  // namespace stepforge
