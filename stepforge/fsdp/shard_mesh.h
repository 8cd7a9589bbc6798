// SPDX-License-Identifier: Apache-2.0
// The ranks over which fully_shard shards and replicates parameters: their communicators, a gather lane and a
// reduce lane.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/parallel_dims.h"
#include "stepforge/storage/data_groups.h"
#include "stepforge/storage/lane_worker.h"

namespace stepforge {

class UnitRuntime;

/// Shared by all units of one or several models. All ranks of the world construct it together, and then call
/// the same methods of the same units in the same order, each from one thread. Destroy it before the World.
class ShardMesh {
 public:
  /// Every rank of the world holds one shard.
  explicit ShardMesh(World& world);
  /// `degrees`: {shards}, or {replicas, shards} with shards innermost; one of them may be -1, the rest of the
  /// world. `name` distinguishes the meshes of one world. Throws UsageError for another number of dimensions
  /// or a product that is not the world size, and PeerError.
  ShardMesh(World& world, const std::vector<int64_t>& degrees, const std::string& name = "fully_shard");
  ~ShardMesh();
  ShardMesh(const ShardMesh&) = delete;
  ShardMesh& operator=(const ShardMesh&) = delete;

  int rank() const { return rank_; }
  int shards() const { return groups_->shard().ranks; }
  int replicas() const { return groups_->replicas(); }
  /// The number of ranks over which gradients are summed or averaged.
  int ranks() const { return shards() * replicas(); }

  /// For sharded parameters: shards, and replicas of them.
  const std::shared_ptr<const DataGroups>& groups() const { return groups_; }
  /// For replicated parameters: every rank is a replica.
  const std::shared_ptr<const DataGroups>& replicated_groups() const { return replicated_groups_; }

  LaneWorker& gather_lane() { return gather_lane_; }
  LaneWorker& reduce_lane() { return reduce_lane_; }
  UnitRuntime& runtime() { return *runtime_; }

  /// Ends all collectives of this mesh, including those that other ranks wait in. Callable from any thread.
  void abort(const std::string& reason) const;

 private:
  int rank_;
  std::shared_ptr<const DataGroups> groups_;
  std::shared_ptr<const DataGroups> replicated_groups_;
  std::unique_ptr<UnitRuntime> runtime_;
  LaneWorker gather_lane_;  // last: tasks use the members above
  LaneWorker reduce_lane_;
};

}  // namespace stepforge
