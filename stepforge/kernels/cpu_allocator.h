// SPDX-License-Identifier: Apache-2.0
// The CPU tensor allocator: counts live bytes exactly and keeps freed blocks for reuse, so that a steady
// training step neither calls malloc nor faults in new pages, even if sizes change a little from step to step. Blocks that no step uses any more are returned
// to the system. Process-wide because libtorch's is: the one piece of global state (docs/architecture.md).
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

namespace stepforge {

struct MemoryStats {
  int64_t live_bytes = 0;  ///< requested by tensors that exist now
  int64_t peak_bytes = 0;  ///< maximum of live_bytes since the last reset
  /// Of the whole process: bytes taken from the system, including freed blocks kept for reuse.
  int64_t reserved_bytes = 0;
  /// Of the whole process: blocks taken from the system so far.
  int64_t system_blocks = 0;
};

/// Installs it as libtorch's CPU allocator; from then on all CPU tensors are counted. Idempotent,
/// thread-safe.
void install_cpu_allocator();

struct KernelTable;

/// The bytes of one rank's tensors, and the kernels that the rank uses. Ranks may be threads of one process, and each has
/// several threads.
class RankMemory;
std::shared_ptr<RankMemory> make_rank_memory();  ///< with the kernels of this library
std::shared_ptr<RankMemory> make_rank_memory(const KernelTable& kernels);

/// Changes the table of this thread's rank by `add`, before other threads work for the rank. Throws Error if the thread works for
/// none.
void add_kernels_to_rank(void (*add)(KernelTable& table));

/// While it exists, tensors that this thread allocates are charged to `rank` (null: to none), and operations are those of its
/// table; freeing tensors, on any thread, credits the same rank. Scopes nest.
class ChargeMemory {
 public:
  explicit ChargeMemory(std::shared_ptr<RankMemory> rank);
  ~ChargeMemory();
  ChargeMemory(const ChargeMemory&) = delete;
  ChargeMemory& operator=(const ChargeMemory&) = delete;

 private:
  std::shared_ptr<RankMemory> outer_;
};

/// The rank that this thread's tensors are charged to, to pass on to threads that it starts; null if none.
std::shared_ptr<RankMemory> charged_memory();

/// The kernels of that rank (kernel_table.h); those of this library if none.
const KernelTable& kernels_of_rank();

/// Live and peak bytes of this thread's rank; of the whole process if it is charged to none.
MemoryStats cpu_memory();
/// Sets the peak of cpu_memory() to the bytes live now.
void reset_cpu_peak();

/// Call it once per training step. Every kTrimSteps calls, free blocks that were not needed since the last
/// trim are returned to the system: memory that only a validation or a sample used does not stay resident.
inline constexpr int kTrimSteps = 16;
void trim_cpu_memory();
/// Returns all free blocks at once: after work whose memory nothing that follows needs, such as that of another model.
void return_free_cpu_memory();

}  // namespace stepforge
