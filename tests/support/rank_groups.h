// SPDX-License-Identifier: Apache-2.0
// The groups of a rank in tests that use storage without a step program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stepforge/storage/group_communicators.h"

namespace stepforge::testing {

/// A communicator for each group and lane of a world.
inline std::shared_ptr<const GroupCommunicators> rank_groups(World& world, const ParallelDims& dims,
                                                             const std::string& name = "") {
  const RankLayout layout = rank_layout({}, {.dims = dims}, {world.rank(), world.size()});
  std::vector<GroupLane> lanes;
  for (int group = 0; group < std::ssize(layout.groups); ++group) {
    for (const Lane lane : {Lane::compute, Lane::gather, Lane::reduce}) lanes.push_back({group, lane});
  }
  return std::make_shared<const GroupCommunicators>(world, layout, lanes, name);
}

/// The same for a world that is divided into `replicas` equal shard groups.
inline std::shared_ptr<const GroupCommunicators> rank_groups(World& world, int replicas = 1,
                                                             const std::string& name = "") {
  return rank_groups(world, ParallelDims{.dp_replicate = replicas}, name);
}

}  // namespace stepforge::testing
