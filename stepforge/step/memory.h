// SPDX-License-Identifier: Apache-2.0
// How many bytes of the device a step program has live, operation by operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// While an operation runs, the bytes live are those of the buffers that the list has allocated and not yet
/// freed, its workspace, and, for every other lane, the largest workspace of the operations that may run
/// beside it: those that neither surely end before it starts nor start after it ends.
struct MemoryAccount {
  int64_t peak_bytes = 0;                    ///< most bytes live at once
  std::size_t peak_operation = 0;            ///< the first operation that reaches it
  int64_t workspace_at_peak = 0;             ///< of that operation, and of others that may run beside it
  std::map<BufferKind, int64_t> at_peak;     ///< live buffers then, persistent ones included
  std::map<BufferKind, int64_t> persistent;  ///< live always
  int64_t host_bytes = 0;                    ///< beside all that, in the memory of the host
  std::vector<int64_t> live_after;           ///< bytes of buffers live after each operation

  int64_t persistent_bytes() const;
  /// The peak where the device computes in the memory of the host: on the CPU.
  int64_t peak_of_one_memory() const { return peak_bytes + host_bytes; }
};

/// The indices of the program must be sound, and its needs must point backward (check_structure).
MemoryAccount account(const StepProgram& program);

}  // namespace stepforge
