// SPDX-License-Identifier: Apache-2.0
// Ranks that shard and replicate a model.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "stepforge/step/checker.h"
#include "stepforge/step/options.h"

namespace stepforge::testing {

/// The groups of a rank: `replicas` shard groups of `shards` consecutive ranks.
inline DataParallel data_parallel(int rank, int shards, int replicas) {
  DataParallel groups{rank, {}, {}, {}};
  for (int i = 0; i < shards; ++i) groups.shard_ranks.push_back(rank / shards * shards + i);
  for (int i = 0; i < replicas; ++i) groups.replica_ranks.push_back(rank % shards + i * shards);
  for (int i = 0; i < shards * replicas; ++i) groups.loss_ranks.push_back(i);
  return groups;
}

/// Keeps the groups that a GroupsOfRank returns alive, equal groups only once.
class GroupPool {
 public:
  std::vector<GroupView> operator()(const std::vector<ProgramGroup>& groups) {
    std::vector<GroupView> views;
    for (const ProgramGroup& group : groups) {
      std::deque<ProgramGroup>& same = kept_[{group.name, group.ranks.empty() ? -1 : group.ranks.front()}];
      const ProgramGroup* found = nullptr;
      for (const ProgramGroup& other : same) found = other.ranks == group.ranks ? &other : found;
      if (found == nullptr) found = &same.emplace_back(group);
      views.push_back({found->name, found->ranks});
    }
    return views;
  }

 private:
  std::map<std::pair<std::string, int>, std::deque<ProgramGroup>> kept_;
};

}  // namespace stepforge::testing
