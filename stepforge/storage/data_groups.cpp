// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/data_groups.h"

#include <algorithm>
#include <string>
#include <vector>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

std::unique_ptr<Communicator> make_group(World& world, const std::vector<int>& ranks,
                                         const std::string& purpose) {
  if (ranks.size() == 1) return nullptr;
  return world.group(format("{} from rank {}", purpose, ranks.front()), ranks);
}

int index_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

DataGroups::DataGroups(World& world, const DataParallel& ranks, const std::string& name)
    : shard_{index_in(ranks.shard_ranks, ranks.rank), static_cast<int>(ranks.shard_ranks.size())},
      replicas_(static_cast<int>(ranks.replica_ranks.size())),
      data_rank_(index_in(ranks.loss_ranks, ranks.rank)),
      data_ranks_(static_cast<int>(ranks.loss_ranks.size())),
      gather_(make_group(world, ranks.shard_ranks, name + "gather")),
      reduce_(make_group(world, ranks.shard_ranks, name + "reduce")),
      replicate_(make_group(world, ranks.replica_ranks, name + "replicate")),
      across_shards_(make_group(world, ranks.shard_ranks, name + "shards")),
      data_(make_group(world, ranks.loss_ranks, name + "data")) {}

void DataGroups::abort(const std::string& reason) const {
  for (Communicator* communicator : {gather(), reduce(), replicate(), across_shards(), data()}) {
    if (communicator != nullptr) communicator->abort(reason);
  }
}

const DataGroups& single_rank_groups() {
  static const DataGroups groups;
  return groups;
}

}  // namespace stepforge
