// SPDX-License-Identifier: Apache-2.0
// Counts what operator new gives out while a meter lives, in the thread that made the meter.
#pragma once

#include <cstddef>

namespace stepforge::testing {

class AllocationMeter {
 public:
  AllocationMeter();
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  /// The largest single allocation, in bytes.
  size_t largest() const;
  /// Of all allocations together, in bytes.
  size_t total() const;
  /// The most bytes that were live at one time, of those allocated since the meter was made.
  size_t peak() const;
};

}  // namespace stepforge::testing
