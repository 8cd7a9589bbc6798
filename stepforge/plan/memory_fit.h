// SPDX-License-Identifier: Apache-2.0
// Whether a training step fits into the memory of a rank, and the smallest changes with which it would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/machine.h"
#include "stepforge/plan/job.h"
#include "stepforge/step/memory.h"

namespace stepforge {

/// The memory that one rank may use.
struct MemoryBudget {
  int64_t bytes = 0;
  std::string source;  ///< "are free on this machine", "are given by --memory"
  /// Offloaded state counts too, because the rank computes in host memory.
  bool with_host = true;
  /// The text is for `stepforge plan`, which has an option for the number of ranks.
  bool of_plan = true;
};

/// What each of the ranks on this host may use: its share of the free memory, or what is left of this process's address
/// space if that is less. `source` says where it is free.
MemoryBudget free_memory(const MemoryFacts& memory, int ranks_on_host, const std::string& source);

/// A change with which the step would need `bytes`.
struct FittingChange {
  std::string settings;  ///< as on the command line: "activation_checkpoint.mode=full --world-size 4"
  int64_t bytes = 0;
};

/// What find_fitting_changes() found.
struct FitResult {
  /// Those on the same ranks come first. Empty if nothing that was tried fits.
  std::vector<FittingChange> changes;
  std::string tried;  ///< "activation_checkpoint.mode=full, --world-size 2 to 65536"
};

/// Bytes of the budget that the step needs.
int64_t needed_bytes(const MemoryAccount& memory, const MemoryBudget& budget);

/// Changes, each found by planning again, with which the training step of this rank fits: recomputation, a smaller
/// micro-batch (with the same rows per step), tensor and expert parallelism, offloading and more ranks, each alone and as
/// small as it can be; if none fits on these ranks, in pairs; and if that is not enough, all together.
FitResult find_fitting_changes(const Job& job, const MemoryBudget& budget);

/// "Memory: the step needs 1.2 GiB per rank, 6.0 GiB are free on this machine: it fits", or "... it does not
/// fit" and a line for each change that would, or what was tried. Plans again only if it does not fit.
std::string memory_verdict(const Job& job, const MemoryAccount& memory, const MemoryBudget& budget);

/// If experts are spread over ranks: "Experts: memory and time assume even loads (router/max_rank_load 1); a rank whose
/// experts take all tokens (router/max_rank_load 4) needs 2.1 GiB: it fits", or "... does not fit" and a line with the load
/// up to which it does and the settings that even out the loads. `even` and `largest` are the memory of these two loads;
/// between them it grows with the load.
std::string uneven_load_verdict(const Job& job, const MemoryAccount& even, const MemoryAccount& largest,
                                const MemoryBudget& budget);

/// An operation ran out of memory; the message names the operation.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// Runs `work`. If it runs out of memory (OutOfMemory, std::bad_alloc), throws Error with the predicted peak
/// in the message.
void with_predicted_peak(const MemoryAccount& memory, const MemoryBudget& budget,
                         const std::function<void()>& work);

/// Bytes of "80GiB", "512 MiB" or "16GB". Throws UsageError for any other text, also for a number without a unit.
int64_t parse_bytes(const std::string& text);

}  // namespace stepforge
