// The CPU tensor allocator: counts live bytes exactly and keeps freed blocks for reuse, so that a steady
// training step neither enters malloc nor faults in fresh pages. Process-wide because libtorch's is: the one
// piece of global state (docs/architecture.md). It serves every thread.
#pragma once

#include <cstdint>

namespace stepforge {

struct MemoryCount {
  int64_t live_bytes = 0;      ///< requested by tensors that exist now
  int64_t peak_bytes = 0;      ///< the most since the last reset
  int64_t reserved_bytes = 0;  ///< taken from the system, freed blocks kept for reuse included
};

/// Makes it libtorch's CPU allocator; from then on all CPU tensors are counted. Idempotent, thread-safe.
void install_cpu_allocator();

MemoryCount cpu_memory();
/// The peak starts again from the bytes live now.
void reset_cpu_peak();

}  // namespace stepforge
