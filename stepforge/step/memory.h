// SPDX-License-Identifier: Apache-2.0
// The live bytes of a step program on the device, operation by operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// While an operation runs, the live bytes are those of the buffers allocated and not yet freed in list
/// order, its workspace, and, for every other lane, the largest workspace of the operations that may run at
/// the same time: those that neither must end before it starts nor start after it ends.
struct MemoryAccount {
  int64_t peak_bytes = 0;                    ///< maximum of the live bytes
  std::size_t peak_operation = 0;            ///< the first operation that reaches it
  int64_t workspace_at_peak = 0;             ///< of that operation and those that may run at the same time
  std::map<BufferKind, int64_t> at_peak;     ///< live buffers, including persistent ones
  std::map<BufferKind, int64_t> persistent;  ///< always live
  int64_t host_bytes = 0;                    ///< in host memory, not part of the above
  std::vector<int64_t> live_after;           ///< live bytes of buffers after each operation

  int64_t persistent_bytes() const;
  /// The peak if the device is the CPU, so that host and device share one memory.
  int64_t peak_of_one_memory() const { return peak_bytes + host_bytes; }
};

/// The program must have passed check_structure().
MemoryAccount account(const StepProgram& program);

}  // namespace stepforge
