// SPDX-License-Identifier: Apache-2.0
// The groups of one rank's data parallelism, each with a communicator for every lane that uses it.
#pragma once

#include <memory>
#include <string>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/parallel_dims.h"

namespace stepforge {

/// This rank's index in its shard group, and the size of the group.
struct ShardRank {
  int rank = 0;
  int ranks = 1;
};

/// Owns the communicators; that of a group of one rank is null. Destroy it before the World, and before the
/// buffers of its collectives, which an engine may use until then.
class DataGroups {
 public:
  /// The groups of a single rank.
  DataGroups() = default;
  /// A collective of all ranks of the world. `name` distinguishes these groups from others of the same ranks.
  /// Throws PeerError.
  DataGroups(World& world, const DataParallel& ranks, const std::string& name = "");

  /// Makes all collectives of this rank's groups fail with `reason`, including those in which other ranks
  /// wait. May be called from any thread.
  void abort(const std::string& reason) const;

  const ShardRank& shard() const { return shard_; }
  /// The number of ranks that hold the same shard.
  int replicas() const { return replicas_; }
  /// This rank's index among the ranks that have different data, and their number.
  int data_rank() const { return data_rank_; }
  int data_ranks() const { return data_ranks_; }

  /// The shard group, for the gather lane.
  Communicator* gather() const { return gather_.get(); }
  /// The shard group, for the reduce lane.
  Communicator* reduce() const { return reduce_.get(); }
  /// The shard group, for the compute lane.
  Communicator* across_shards() const { return across_shards_.get(); }
  /// The ranks that hold the same shard, for the reduce lane.
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
