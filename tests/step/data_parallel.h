// SPDX-License-Identifier: Apache-2.0
// Ranks that cut a model and copy it.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "stepforge/step/checker.h"
#include "stepforge/step/options.h"

namespace stepforge::testing {

/// The place of a rank among `replicas` groups of `shards` neighbours.
inline DataParallel data_parallel(int rank, int shards, int replicas) {
  DataParallel place{rank, {}, {}, {}};
  for (int i = 0; i < shards; ++i) place.shard_ranks.push_back(rank / shards * shards + i);
  for (int i = 0; i < replicas; ++i) place.replica_ranks.push_back(rank % shards + i * shards);
  for (int i = 0; i < shards * replicas; ++i) place.loss_ranks.push_back(i);
  return place;
}

/// Groups made on the fly, kept for as long as a check looks at them. Equal lists with one first rank are
/// kept once.
class KeptGroups {
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
