// How many bytes of the device a step program has live, operation by operation, when it runs in list order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

struct MemoryAccount {
  int64_t peak_bytes = 0;                 ///< most bytes live at once, workspace included
  std::size_t peak_operation = 0;         ///< the first operation that reaches it
  int64_t workspace_at_peak = 0;          ///< of that operation
  std::map<BufferKind, int64_t> at_peak;  ///< live bytes then, persistent buffers included, without workspace
  std::map<BufferKind, int64_t> persistent;  ///< live always
  int64_t host_bytes = 0;                    ///< beside all that, in the memory of the host
  std::vector<int64_t> live_after;           ///< bytes live when each operation has finished

  int64_t persistent_bytes() const;
  /// The peak where the device computes in the memory of the host: on the CPU.
  int64_t peak_of_one_memory() const { return peak_bytes + host_bytes; }
};

/// The program's indices must be sound (check_programs).
MemoryAccount account(const StepProgram& program);

}  // namespace stepforge
