// SPDX-License-Identifier: Apache-2.0
// The ranks over which fully_shard shards and replicates parameters, and over which the user divides layers:
// their communicators, a gather lane and a reduce lane.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"
#include "stepforge/kernels/compute_device.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/storage/group_communicators.h"
#include "stepforge/storage/lane_worker.h"

namespace stepforge {

class UnitRuntime;

/// Shared by all units of one or several models. All ranks of the world construct it together, and then call
/// the same methods of the same units in the same order, each from one thread. Destroy it before the World.
class ShardMesh {
 public:
  /// Every rank of the world holds one shard.
  explicit ShardMesh(World& world);
  /// `degrees`: {shards}, {replicas, shards} or {replicas, shards, tensor}, the last one innermost: its ranks
  /// are neighbours. One of them may be -1, the rest of the world. `name` distinguishes the meshes of one
  /// world. Throws UsageError for another number of dimensions or a product that is not the world size, and
  /// PeerError.
  /// Units keep their parameters on `device` and compute there, collectives are enqueued, and gathers and reductions have
  /// streams of their own. The device has its own kernels for what this thread does if the thread works for a rank (ChargeMemory).
  ShardMesh(World& world, const std::vector<int64_t>& degrees, const std::string& name = "fully_shard",
            const ComputeDevice& device = cpu_device());
  ~ShardMesh();
  ShardMesh(const ShardMesh&) = delete;
  ShardMesh& operator=(const ShardMesh&) = delete;

  /// On which units compute.
  const ComputeDevice& device() const { return groups_->compute(); }
  const RankLayout& layout() const { return groups_->layout(); }
  int rank() const { return layout().id.rank; }
  int shards() const { return layout().size_of(layout().find(kShardGroup)); }
  int replicas() const { return layout().size_of(layout().find(kReplicaGroup)); }
  /// The number of ranks over which gradients are summed or averaged.
  int ranks() const { return shards() * replicas(); }
  /// This rank's number among these. Ranks of tensor parallelism share it: they read the same rows.
  int data_rank() const { return layout().data_rank; }
  /// This rank's place in tensor parallelism, and the number of its ranks.
  int tensor_rank() const { return layout().index_in(layout().tensor_group); }
  int tensor_degree() const { return layout().size_of(layout().tensor_group); }

  const GroupCommunicators& groups() const { return *groups_; }
  /// The ranks that hold other shards, those with the other places in tensor parallelism, and all ranks, on
  /// the compute lane; null if this rank is alone. Layers may use them too, for sums of their own.
  Communicator* shard_ranks() const;
  Communicator* tensor_ranks() const;
  Communicator* all_ranks() const;

  LaneWorker& gather_lane() { return gather_lane_; }
  LaneWorker& reduce_lane() { return reduce_lane_; }
  UnitRuntime& runtime() { return *runtime_; }

  /// Ends all collectives of this mesh, including those that other ranks wait in. Callable from any thread.
  void abort(const std::string& reason) const;

 private:
  std::unique_ptr<const GroupCommunicators> groups_;
  std::unique_ptr<UnitRuntime> runtime_;
  LaneWorker gather_lane_;  // last: tasks use the members above
  LaneWorker reduce_lane_;
};

}  // namespace stepforge
