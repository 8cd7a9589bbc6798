// SPDX-License-Identifier: Apache-2.0
// The rank layout: what one rank holds of each unit, and with which ranks it gathers, reduces and sums. A pure
// function of the model's units, the parallel plan and the rank. The step program, the storage, the
// communicators and the loader of the rank are built from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/comm/collective.h"
#include "stepforge/layout/parallel_dims.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/parameter.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

inline constexpr std::string_view kShardGroup = "fsdp";
inline constexpr std::string_view kReplicaGroup = "dp_replicate";
inline constexpr std::string_view kSliceShardGroup = "fsdp_tp";
inline constexpr std::string_view kExpertGroup = "ep";
inline constexpr std::string_view kExpertShardGroup = "efsdp";
inline constexpr std::string_view kLossGroup = "loss";
inline constexpr std::string_view kTensorGroup = "tp";
inline constexpr std::string_view kContextGroup = "cp";
inline constexpr std::string_view kHeadsGroup = "cp_heads";
inline constexpr std::string_view kRingGroup = "cp_ring";
inline constexpr std::string_view kPipelineGroup = "pp";
inline constexpr std::string_view kStageGroup = "stage";
inline constexpr std::string_view kTieGroup = "tie";
inline constexpr std::string_view kWorldGroup = "world";

/// A unit with a copy in two stages on different ranks.
struct TiedUnit {
  std::string name = {};  ///< "" if there is no tied unit
  int owner = -1;         ///< member of the pipeline that counts and saves it
  int copy = -1;          ///< the other one
};

/// How a model is spread over ranks and in which dtypes its parameters and gradients travel.
struct ParallelPlan {
  ParallelDims dims = {};
  Partition partition = {};   ///< how every unit is sharded over its shard group
  DType gather = DType::f32;  ///< dtype of gathered parameters
  DType reduce = DType::f32;  ///< dtype in which gradients are sent; they are written and accumulated in fp32
  TiedUnit tied = {};
  std::vector<std::string> units = {};  ///< names of the whole model's units; empty: the rank's units are all
  bool offload = false;                 ///< masters, gradients and optimizer state are kept in host memory
};

/// Ranks that take part in the same collectives; this rank is one of them.
struct RankGroup {
  std::string name;        ///< its axis of the mesh: "fsdp"
  std::vector<int> ranks;  ///< global, ascending, at least two
};

/// One collective in the reduction of a unit's gradient.
struct ReductionStep {
  CollectiveKind collective = CollectiveKind::all_reduce;
  int group = -1;  ///< index into RankLayout::groups

  bool operator==(const ReductionStep&) const = default;
};

/// What a rank holds of one unit, and how.
struct UnitLayout {
  int shard_group = -1;  ///< index into RankLayout::groups; -1: the rank holds all of it
  std::vector<ReductionStep> reductions = {};  ///< the steps of reducing its gradient, in order
  Partition partition = {};                    ///< over the shard group
  DType gather = DType::f32;
  DType reduce = DType::f32;
  bool offloaded = false;
  int number = 0;      ///< its number in the whole model
  int tie_group = -1;  ///< ranks that hold a copy of it for another stage
  /// For each parameter, whether this rank counts it in norms and saves it. If all tensor-parallel ranks hold the same
  /// shard, only the first one does; if several stages hold a copy of a tied unit, only the first stage does.
  std::vector<bool> counted = {};

  bool counts(size_t parameter) const { return counted.empty() || counted.at(parameter); }
  /// The group whose ranks hold the same shard of the unit (that of its first all-reduce); -1 if there is none.
  int replica_group() const;
};

struct RankLayout {
  RankId id;
  ParallelDims dims;   ///< without -1
  int data_rank = 0;   ///< among the ranks that read different rows
  int data_ranks = 1;  ///< their number
  std::vector<RankGroup> groups;
  int loss_group = -1;            ///< all ranks whose losses are summed; -1: only this rank
  int tensor_group = -1;          ///< ranks that hold the other parts of divided tensors
  int context_group = -1;         ///< ranks that hold the other tokens of the same rows
  int heads_group = -1;           ///< ranks of the context group with which it exchanges tokens for heads
  int keys_group = -1;            ///< ranks of the context group with which it exchanges keys
  int expert_group = -1;          ///< ranks that hold the other experts
  int pipeline_group = -1;        ///< ranks that have the other stages of the model for the same rows
  int tie_group = -1;             ///< ranks that hold the copies of a tied unit; -1: this rank has none
  int model_units = 0;            ///< units of the whole model
  int world_group = -1;           ///< all ranks; the loss group if it has all; -1: there is one rank
  std::vector<UnitLayout> units;  ///< in the order of the model specification

  /// The group along this axis of the mesh; -1 if the rank is alone in it.
  int find(std::string_view axis) const;
  /// The number of ranks of a group, and this rank's index in it. Group -1 has this rank only.
  int size_of(int group) const;
  int index_in(int group) const;
};

/// The layout of a unit that is sharded over the group of its mesh and replicated over the replica group. `unit` has this
/// rank's parts of divided tensors.
UnitLayout sharded_unit(const RankLayout& layout, const ParallelPlan& plan, const UnitSpec& unit);

/// The layout of a unit that is not sharded: all ranks with the same parts of divided tensors are replicas.
UnitLayout replicated_unit(const RankLayout& layout, const ParallelPlan& plan, const UnitSpec& unit);

/// The layout of a unit that is state of a block: replicated, and resident in fp32. The first shard rank saves it.
UnitLayout state_unit(const RankLayout& layout, ParallelPlan plan, const UnitSpec& unit);

/// The index of the group with this name; -1 if there is none.
int find_group(std::span<const RankGroup> groups, std::string_view name);

/// The group of all ranks, over which labels and requests to stop are counted: "world", or "loss" if that has
/// all ranks; -1 if there is one rank.
int label_group(std::span<const RankGroup> groups);

/// The index of the group of all ranks that have the same layers, over which tokens are counted: "stage", or a group that
/// has the same ranks; -1 if there is one rank.
int stage_group(std::span<const RankGroup> groups);

/// This rank's part of divided tensors.
TensorParallel tensor_parallel(const ParallelDims& resolved, RankId rank);

/// `units` are this rank's: with tensor parallelism, its parts of divided tensors. Throws UsageError if the
/// degrees do not fit the world size (resolve_dims()), and Error if the rank is outside the world.
RankLayout rank_layout(const std::vector<UnitSpec>& units, const ParallelPlan& plan = {}, RankId rank = {});

}  // namespace stepforge
