// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of operator new while a meter lives, in the thread that created the meter.
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
  /// The sum of all allocations, in bytes.
  size_t total() const;
  /// The peak of live bytes that were allocated since the meter was created.
  size_t peak() const;
};

}  // namespace stepforge::testing
