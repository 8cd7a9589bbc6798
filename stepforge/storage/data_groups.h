// The groups of one rank's data parallelism, each with a communicator for every lane that uses it.
#pragma once

#include <memory>
#include <string>

#include "stepforge/comm/communicator.h"
#include "stepforge/step/options.h"

namespace stepforge {

/// This rank's place among the ranks between which each unit is cut.
struct ShardRank {
  int rank = 0;
  int ranks = 1;
};

/// Owns its communicators. Those of a group of one rank are null: nothing is communicated there. Must be
/// destroyed before the World, and after the tensors' last use in a collective.
class DataGroups {
 public:
  /// One rank.
  DataGroups() = default;
  /// All ranks of the world call it together. `name` tells these groups from others of the same ranks. Throws
  /// PeerError.
  DataGroups(World& world, const DataParallel& place, const std::string& name = "");

  /// Ends all collectives of this rank's groups, also those that other ranks wait in. From any thread.
  void abort(const std::string& reason) const;

  const ShardRank& shard() const { return shard_; }
  /// Ranks that hold the same shard.
  int replicas() const { return replicas_; }
  /// Number of this rank's data and of all ranks with data of their own.
  int data_rank() const { return data_rank_; }
  int data_ranks() const { return data_ranks_; }

  Communicator* gather() const { return gather_.get(); }  ///< shard group, for the gather lane
  Communicator* reduce() const { return reduce_.get(); }  ///< shard group, for the reduce lane
  Communicator* replicate() const {
    return replicate_.get();
  }  ///< replicas of this shard, for the reduce lane
  Communicator* across_shards() const { return across_shards_.get(); }  ///< shard group, for the compute lane
  Communicator* data() const { return data_.get(); }  ///< all ranks with data, for the compute lane

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

}  // namespace stepforge
