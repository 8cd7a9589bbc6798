// SPDX-License-Identifier: Apache-2.0
// The CPU tensor allocator: counts live bytes exactly and keeps freed blocks for reuse, so that a steady
// training step neither enters malloc nor faults in fresh pages. Blocks that no step uses any more go back to the
// system. Process-wide because libtorch's is: the one piece of global state (docs/architecture.md). It serves
// every thread.
#pragma once

#include <cstdint>
#include <memory>

namespace stepforge {

struct MemoryCount {
  int64_t live_bytes = 0;  ///< requested by tensors that exist now
  int64_t peak_bytes = 0;  ///< the most since the last reset
  int64_t reserved_bytes =
      0;                      ///< of the process: taken from the system, freed blocks kept for reuse included
  int64_t system_blocks = 0;  ///< of the process: blocks taken from the system so far
};

/// Makes it libtorch's CPU allocator; from then on all CPU tensors are counted. Idempotent, thread-safe.
void install_cpu_allocator();

/// The tensors of one rank. Ranks may be threads of one process, and each has several threads.
class RankMemory;
std::shared_ptr<RankMemory> make_rank_memory();

/// While it exists, tensors that this thread allocates are charged to `rank` (null: to none); freeing them, on
/// any thread, credits the same rank. Scopes nest.
class ChargeMemory {
 public:
  explicit ChargeMemory(std::shared_ptr<RankMemory> rank);
  ~ChargeMemory();
  ChargeMemory(const ChargeMemory&) = delete;
  ChargeMemory& operator=(const ChargeMemory&) = delete;

 private:
  std::shared_ptr<RankMemory> outer_;
};

/// The rank that this thread's tensors are charged to, for the threads that it starts; null if none.
std::shared_ptr<RankMemory> charged_memory();

/// Live and peak bytes of this thread's rank; of the whole process if the thread is charged to none.
MemoryCount cpu_memory();
/// The peak of cpu_memory() starts again from the bytes live now.
void reset_cpu_peak();

/// Called once per training step. Every kTrimSteps calls, free blocks that were never needed since the last
/// time go back to the system: what only a validation or a sample used does not stay resident.
inline constexpr int kTrimSteps = 16;
void trim_cpu_memory();

}  // namespace stepforge
