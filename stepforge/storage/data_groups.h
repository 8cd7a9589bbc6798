// SPDX-License-Identifier: Apache-2.0
// The groups of one rank's data parallelism, each with a communicator for every lane that uses it.
#pragma once

#include <memory>
#include <string>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/parallel_dims.h"

namespace stepforge {

/// This rank's index among the ranks that hold the shards of each unit.
struct ShardRank {
  int rank = 0;
  int ranks = 1;
};

/// Owns its communicators; that of a group of one rank is null. Destroy it before the World, and before the
/// buffers of its collectives: an engine may use them until then.
class DataGroups {
 public:
  /// The groups of a single rank.
  DataGroups() = default;
  /// A collective of all ranks of the world. `name` distinguishes these groups from others of the same ranks.
  /// Throws PeerError.
  DataGroups(World& world, const DataParallel& ranks, const std::string& name = "");

  /// Ends all collectives of this rank's groups, including those that other ranks wait in. Callable from any
  /// thread.
  void abort(const std::string& reason) const;

  const ShardRank& shard() const { return shard_; }
  /// The number of ranks that hold the same shard.
  int replicas() const { return replicas_; }
  /// This rank's index among the ranks that have different data, and their number.
  int data_rank() const { return data_rank_; }
  int data_ranks() const { return data_ranks_; }

  /// The shard group, for the gather lane, the reduce lane and the compute lane.
  Communicator* gather() const { return gather_.get(); }
  Communicator* reduce() const { return reduce_.get(); }
  Communicator* across_shards() const { return across_shards_.get(); }
  /// The replicas of this shard, for the reduce lane.
  Communicator* replicate() const { return replicate_.get(); }
  /// All ranks that have different data, for the compute lane.
  Communicator* data() const { return data_.get(); }

 private:
  ShardRank shard_;
  int replicas_ = 1;
  int data_rank_ = 0;
  int data_ranks_ = 1;
  std::unique_ptr<Communicator> gather_;
  std::unique_ptr<Communicator> reduce_;
  std::unique_ptr<Communicator> replicate_;
  std::unique_ptr<Communicator> across_shards_;
  std::unique_ptr<Communicator> data_;
};

/// The groups of a single rank.
const DataGroups& single_rank_groups();

}  // namespace stepforge
