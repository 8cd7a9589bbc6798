// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/shard_mesh.h"

#include <initializer_list>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/unit_runtime.h"

namespace stepforge {

namespace {

ParallelDims dims_of(const std::vector<int64_t>& degrees) {
  switch (degrees.size()) {
    case 1:
      return {.dp_shard = degrees[0]};
    case 2:
      return {.dp_replicate = degrees[0], .dp_shard = degrees[1]};
    case 3:
      return {.dp_replicate = degrees[0], .dp_shard = degrees[1], .tp = degrees[2]};
    default:
      throw UsageError(
          format("a mesh of {} dimensions: must be {{shards}}, {{replicas, shards}} or {{replicas, "
                 "shards, tensor}}",
                 degrees.size()));
  }
}

/// The lanes of each group that units and optimizers use.
std::vector<GroupLane> lanes_of(const RankLayout& layout) {
  std::vector<GroupLane> lanes;
  const auto add = [&](int group, std::initializer_list<Lane> used) {
    if (group < 0) return;
    for (const Lane lane : used) lanes.push_back({group, lane});
  };
  add(layout.find(kShardGroup), {Lane::compute, Lane::gather, Lane::reduce});
  add(layout.find(kReplicaGroup), {Lane::reduce});
  add(layout.loss_group, {Lane::reduce});
  add(layout.tensor_group, {Lane::compute});
  add(layout.world_group, {Lane::compute});
  return lanes;
}

}  // namespace

ShardMesh::~ShardMesh() = default;

ShardMesh::ShardMesh(World& world) : ShardMesh(world, {-1}) {}

ShardMesh::ShardMesh(World& world, const std::vector<int64_t>& degrees, const std::string& name,
                     const ComputeDevice& device)
    : runtime_(std::make_unique<UnitRuntime>()),
      gather_lane_(
          world.size() > 1, [this](const std::string& reason) { abort(reason); }, device),
      reduce_lane_(world.size() > 1, [this](const std::string& reason) { abort(reason); }, device) {
  if (device.add_kernels != nullptr && charged_memory() != nullptr) add_kernels_to_rank(device.add_kernels);
  const RankLayout layout = rank_layout({}, {.dims = dims_of(degrees)}, {world.rank(), world.size()});
  groups_ = std::make_unique<GroupCommunicators>(world, layout, lanes_of(layout), name + " ", device);
}

Communicator* ShardMesh::shard_ranks() const {
  return groups_->at(layout().find(kShardGroup), Lane::compute);
}

Communicator* ShardMesh::tensor_ranks() const {
  return groups_->at(layout().tensor_group, Lane::compute);
}

Communicator* ShardMesh::all_ranks() const {
  return groups_->at(layout().world_group, Lane::compute);
}

void ShardMesh::abort(const std::string& reason) const {
  groups_->abort(reason);
}

}  // namespace stepforge
