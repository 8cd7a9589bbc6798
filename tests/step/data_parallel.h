// SPDX-License-Identifier: Apache-2.0
// Ranks that shard and replicate a model.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "stepforge/layout/rank_layout.h"
#include "stepforge/step/build.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/options.h"

namespace stepforge::testing {

/// How units are gathered, and in which dtype.
struct Gathers {
  DType dtype = DType::f32;
  ReshardMode reshard = ReshardMode::never;
  PrefetchPolicy prefetch = {};
  int n = 1;
};

/// The options of a step, and of the layout of its rank.
struct RankOptions : StepOptions {
  ParallelPlan plan = {};
  RankId rank = {};

  /// `replicas` shard groups of `shards` consecutive ranks.
  void set_ranks(int of_rank, int shards, int replicas) {
    plan.dims = {.dp_replicate = replicas, .dp_shard = shards};
    rank = {of_rank, shards * replicas};
  }
  void set_gathers(const Gathers& gathers) {
    plan.gather = gathers.dtype;
    gather = {gathers.reshard, gathers.prefetch, gathers.n};
  }
};

inline StepProgram build_step(const ModelSpec& model, const RankOptions& options) {
  return build_step(model, rank_layout(model.units, options.plan, options.rank), options);
}

/// The groups of a rank.
inline std::vector<RankGroup> groups_of(int rank, int shards, int replicas) {
  RankOptions options;
  options.set_ranks(rank, shards, replicas);
  return rank_layout({}, options.plan, options.rank).groups;
}

/// Proves a job whose ranks all run the operations of `program`.
inline SymmetryProof check_symmetric(const StepProgram& program, int world_size,
                                     const GroupsOfRank& groups_of) {
  return check_classes(std::span(&program, 1), world_size, [](int) { return 0; }, groups_of);
}

/// Keeps the groups that a GroupsOfRank returns alive, equal groups only once.
class GroupPool {
 public:
  std::vector<GroupView> operator()(const std::vector<RankGroup>& groups) {
    std::vector<GroupView> views;
    for (const RankGroup& group : groups) {
      std::deque<RankGroup>& same = kept_[{group.name, group.ranks.empty() ? -1 : group.ranks.front()}];
      const RankGroup* found = nullptr;
      for (const RankGroup& other : same) found = other.ranks == group.ranks ? &other : found;
      if (found == nullptr) found = &same.emplace_back(group);
      views.push_back({found->name, found->ranks});
    }
    return views;
  }

 private:
  std::map<std::pair<std::string, int>, std::deque<RankGroup>> kept_;
};

}  // namespace stepforge::testing
