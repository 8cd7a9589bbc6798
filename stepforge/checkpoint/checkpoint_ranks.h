// The ranks that save and load a checkpoint together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Used by one thread at a time; all ranks call the same members in the same order.
class CheckpointRanks {
 public:
  /// This rank alone.
  CheckpointRanks() = default;
  /// `group` (null: this rank alone) serves nothing else. No action may take longer than `limit_seconds`.
  CheckpointRanks(std::unique_ptr<Communicator> group, double limit_seconds);

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int size() const { return group_ == nullptr ? 1 : group_->size(); }

  /// Runs `action` on each rank and returns what each returned, by rank. If it throws on any, throws Error on
  /// all with the number and message of each rank that failed; a rank alone throws what its action threw.
  ///
  /// Disks may be slow: ranks tell one another several times a second that they are still at it, so that the
  /// communicator's deadline only ends the wait for a rank that is gone (PeerError).
  std::vector<std::string> run(const std::function<std::string()>& action) const;

 private:
  bool nobody_works(bool finished) const;

  std::unique_ptr<Communicator> group_;
  double limit_seconds_ = 0;
};

}  // namespace stepforge
