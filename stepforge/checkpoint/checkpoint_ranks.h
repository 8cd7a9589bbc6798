// SPDX-License-Identifier: Apache-2.0
// The ranks that save and load a checkpoint together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Used by one thread at a time; all ranks must call the same functions in the same order.
class CheckpointRanks {
 public:
  /// One rank, which waits for its actions without a deadline: for commands that a user can interrupt.
  CheckpointRanks() = default;
  /// `group` (null: one rank) may not be used for anything else. An action that takes longer than
  /// `limit_seconds` has failed.
  CheckpointRanks(std::unique_ptr<Communicator> group, double limit_seconds);

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int size() const { return group_ == nullptr ? 1 : group_->size(); }

  /// Runs `action` on each rank and returns the results of all ranks, in rank order. If it throws on any
  /// rank, throws Error on all with the number and message of each rank that failed; with one rank, rethrows
  /// the exception of the action.
  ///
  /// `action` must own everything that it uses: when it is late, run() throws while the action may still wait
  /// for its disk, on a detached thread.
  ///
  /// Disks may be slow: ranks signal several times a second that they are still working, so the
  /// communicator's deadline passes only if a rank hangs or its process has ended (PeerError).
  std::vector<std::string> run(std::function<std::string()> action) const;

 private:
  bool all_have_ended(bool ended) const;

  std::unique_ptr<Communicator> group_;
  double limit_seconds_ = 0;
};

}  // namespace stepforge
