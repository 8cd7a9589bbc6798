// SPDX-License-Identifier: Apache-2.0
#include "stepforge/layout/rank_layout.h"

#include <algorithm>
#include <utility>

namespace stepforge {

namespace {

/// Adds the group of this axis, if the rank is not alone in it.
void add_group(RankLayout& layout, const Mesh& mesh, std::string_view axis) {
  if (mesh.size(axis) > 1) layout.groups.push_back({std::string(axis), mesh.group(axis, layout.id.rank)});
}

void add_tie_group(RankLayout& layout, const TiedUnit& tied) {
  const int member = layout.index_in(layout.pipeline_group);
  if (tied.name.empty() || (member != tied.owner && member != tied.copy)) return;
  const std::vector<int>& stages = layout.groups.at(static_cast<size_t>(layout.pipeline_group)).ranks;
  std::vector<int> ranks = {stages.at(static_cast<size_t>(tied.owner)),
                            stages.at(static_cast<size_t>(tied.copy))};
  std::ranges::sort(ranks);
  layout.tie_group = static_cast<int>(layout.groups.size());
  layout.groups.push_back({std::string(kTieGroup), std::move(ranks)});
}

/// The fields that do not depend on whether the unit is sharded.
UnitLayout unit_of(const RankLayout& layout, const ParallelPlan& plan, const UnitSpec& unit) {
  UnitLayout result{.partition = plan.partition,
                    .gather = unit.fp32 || unit.state ? DType::f32 : plan.gather,
                    .reduce = plan.reduce,
                    .offloaded = plan.offload};
  const bool tied = layout.tie_group >= 0 && unit.name == plan.tied.name;
  const bool is_copy = tied && layout.index_in(layout.pipeline_group) == plan.tied.copy;
  const bool counts_whole = layout.index_in(layout.tensor_group) == 0 || unit.mesh != UnitMesh::rows;
  for (const ParameterSpec& parameter : unit.parameters)
    result.counted.push_back(!is_copy && (counts_whole || parameter.is_sliced()));
  if (tied) result.tie_group = layout.tie_group;
  return result;
}

std::string_view shard_group_of(UnitMesh mesh) {
  switch (mesh) {
    case UnitMesh::rows:
      return kShardGroup;
    case UnitMesh::slices:
      return kSliceShardGroup;
    case UnitMesh::experts:
      return kExpertShardGroup;
  }
  return kShardGroup;
}

}  // namespace

int find_group(std::span<const RankGroup> groups, std::string_view name) {
  const auto found = std::ranges::find(groups, name, &RankGroup::name);
  return found == groups.end() ? -1 : static_cast<int>(found - groups.begin());
}

int label_group(std::span<const RankGroup> groups) {
  const int world = find_group(groups, kWorldGroup);
  return world >= 0 ? world : find_group(groups, kLossGroup);
}

int stage_group(std::span<const RankGroup> groups) {
  if (const int stage = find_group(groups, kStageGroup); stage >= 0) return stage;
  return find_group(groups, kPipelineGroup) >= 0 ? find_group(groups, kLossGroup) : label_group(groups);
}

int UnitLayout::replica_group() const {
  const auto found = std::ranges::find(reductions, CollectiveKind::all_reduce, &ReductionStep::collective);
  return found == reductions.end() ? -1 : found->group;
}

int RankLayout::find(std::string_view axis) const {
  return find_group(groups, axis);
}

int RankLayout::size_of(int group) const {
  return group < 0 ? 1 : static_cast<int>(groups.at(static_cast<size_t>(group)).ranks.size());
}

int RankLayout::index_in(int group) const {
  if (group < 0) return 0;
  const std::vector<int>& ranks = groups.at(static_cast<size_t>(group)).ranks;
  return static_cast<int>(std::ranges::find(ranks, id.rank) - ranks.begin());
}

UnitLayout sharded_unit(const RankLayout& layout, const ParallelPlan& plan, const UnitSpec& unit) {
  UnitLayout result = unit_of(layout, plan, unit);
  result.shard_group = layout.find(shard_group_of(unit.mesh));
  if (result.shard_group >= 0)
    result.reductions.push_back({CollectiveKind::reduce_scatter, result.shard_group});
  const int replicas = layout.find(kReplicaGroup);
  if (replicas >= 0) result.reductions.push_back({CollectiveKind::all_reduce, replicas});
  return result;
}

UnitLayout replicated_unit(const RankLayout& layout, const ParallelPlan& plan, const UnitSpec& unit) {
  UnitLayout result = unit_of(layout, plan, unit);
  if (layout.loss_group >= 0) result.reductions = {{CollectiveKind::all_reduce, layout.loss_group}};
  return result;
}

UnitLayout state_unit(const RankLayout& layout, ParallelPlan plan, const UnitSpec& unit) {
  plan.offload = false;
  UnitLayout result = replicated_unit(layout, plan, unit);
  if (layout.index_in(layout.find(kShardGroup)) != 0) result.counted.assign(unit.parameters.size(), false);
  return result;
}

TensorParallel tensor_parallel(const ParallelDims& resolved, RankId rank) {
  const Mesh mesh(resolved, rank.world_size);
  return {mesh.coordinate("tp", rank.rank), mesh.size("tp")};
}

RankLayout rank_layout(const std::vector<UnitSpec>& units, const ParallelPlan& plan, RankId rank) {
  const Mesh mesh(resolve_dims(plan.dims, rank.world_size), rank.world_size);
  RankLayout layout;
  layout.id = rank;
  layout.dims = mesh.dims();
  layout.data_rank = mesh.coordinate("batch", rank.rank);
  layout.data_ranks = mesh.size("batch");
  for (const std::string_view axis :
       {kShardGroup, kReplicaGroup, kLossGroup, kTensorGroup, kContextGroup, kPipelineGroup})
    add_group(layout, mesh, axis);
  layout.loss_group = layout.find(kLossGroup);
  layout.tensor_group = layout.find(kTensorGroup);
  layout.pipeline_group = layout.find(kPipelineGroup);
  layout.context_group = layout.find(kContextGroup);
  if (layout.dims.cp_heads == layout.dims.cp) {
    layout.heads_group = layout.context_group;
  } else if (layout.dims.cp_heads == 1) {
    layout.keys_group = layout.context_group;
  } else {
    for (const std::string_view axis : {kHeadsGroup, kRingGroup}) add_group(layout, mesh, axis);
    layout.heads_group = layout.find(kHeadsGroup);
    layout.keys_group = layout.find(kRingGroup);
  }
  if (std::ranges::find(units, UnitMesh::slices, &UnitSpec::mesh) != units.end())
    add_group(layout, mesh, kSliceShardGroup);
  if (layout.dims.ep * layout.dims.etp > 1)
    for (const std::string_view axis : {kExpertGroup, kExpertShardGroup}) add_group(layout, mesh, axis);
  layout.expert_group = layout.find(kExpertGroup);
  add_tie_group(layout, plan.tied);
  // Without stages this group has all ranks, and without tensor parallelism it is the loss group.
  if (layout.tensor_group >= 0 && layout.pipeline_group >= 0 &&
      std::ranges::find(units, true, &UnitSpec::state) != units.end())
    add_group(layout, mesh, kStageGroup);
  if (layout.size_of(layout.loss_group) < rank.world_size) add_group(layout, mesh, kWorldGroup);
  layout.world_group = label_group(layout.groups);
  layout.model_units = static_cast<int>(plan.units.empty() ? units.size() : plan.units.size());
  for (const UnitSpec& unit : units) {
    layout.units.push_back(unit.state ? state_unit(layout, plan, unit) : sharded_unit(layout, plan, unit));
    const auto number = std::ranges::find(plan.units, unit.name) - plan.units.begin();
    layout.units.back().number = static_cast<int>(plan.units.empty() ? layout.units.size() - 1 : number);
  }
  return layout;
}

}  // namespace stepforge
