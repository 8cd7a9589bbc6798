#include "stepforge/storage/data_groups.h"

#include <algorithm>
#include <string>
#include <vector>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

std::unique_ptr<Communicator> make(World& world, const std::vector<int>& ranks, const std::string& purpose) {
  if (ranks.size() == 1) return nullptr;
  return world.group(format("{} from rank {}", purpose, ranks.front()), ranks);
}

int number_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

DataGroups::DataGroups(World& world, const DataParallel& place, const std::string& name)
    : shard_{number_in(place.shard_ranks, place.rank), static_cast<int>(place.shard_ranks.size())},
      replicas_(static_cast<int>(place.replica_ranks.size())),
      data_rank_(number_in(place.loss_ranks, place.rank)),
      data_ranks_(static_cast<int>(place.loss_ranks.size())),
      gather_(make(world, place.shard_ranks, name + "gather")),
      reduce_(make(world, place.shard_ranks, name + "reduce")),
      replicate_(make(world, place.replica_ranks, name + "replicate")),
      across_shards_(make(world, place.shard_ranks, name + "shards")),
      data_(make(world, place.loss_ranks, name + "data")) {}

void DataGroups::abort(const std::string& reason) const {
  for (Communicator* communicator : {gather(), reduce(), replicate(), across_shards(), data()}) {
    if (communicator != nullptr) communicator->abort(reason);
  }
}

}  // namespace stepforge
