// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/shard_mesh.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/unit_runtime.h"

namespace stepforge {

namespace {

Mesh mesh_of(const std::vector<int64_t>& degrees, int world_size) {
  if (degrees.empty() || degrees.size() > 2) {
    throw UsageError(
        format("a mesh of {} dimensions: must be {{shards}} or {{replicas, shards}}", degrees.size()));
  }
  ParallelDims dims;
  dims.dp_shard = degrees.back();
  dims.dp_replicate = degrees.size() == 2 ? degrees.front() : 1;
  return {resolve_dims(dims, world_size), world_size};
}

}  // namespace

ShardMesh::~ShardMesh() = default;

ShardMesh::ShardMesh(World& world) : ShardMesh(world, {-1}) {}

ShardMesh::ShardMesh(World& world, const std::vector<int64_t>& degrees, const std::string& name)
    : rank_(world.rank()),
      runtime_(std::make_unique<UnitRuntime>()),
      gather_lane_(world.size() > 1, [this](const std::string& reason) { abort(reason); }),
      reduce_lane_(world.size() > 1, [this](const std::string& reason) { abort(reason); }) {
  const Mesh mesh = mesh_of(degrees, world.size());
  const std::vector<int> shards = mesh.group("dp_shard", rank_);
  groups_ = std::make_shared<DataGroups>(
      world, DataParallel{rank_, shards, mesh.group("dp_replicate", rank_), mesh.group("dp", rank_)},
      name + " ");
  replicated_groups_ = groups_;
  if (shards.size() == 1) return;
  replicated_groups_ = std::make_shared<DataGroups>(
      world, DataParallel{rank_, {rank_}, mesh.group("dp", rank_), {rank_}}, name + " replicated ");
}

void ShardMesh::abort(const std::string& reason) const {
  groups_->abort(reason);
  replicated_groups_->abort(reason);
}

}  // namespace stepforge
