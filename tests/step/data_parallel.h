// Ranks that cut a model and copy it.
#pragma once

#include "stepforge/step/build.h"

namespace stepforge::test {

/// The place of a rank among `replicas` groups of `shards` neighbours.
inline DataParallel data_parallel(int rank, int shards, int replicas) {
  DataParallel place{rank, {}, {}, {}};
  for (int i = 0; i < shards; ++i) place.shard_ranks.push_back(rank / shards * shards + i);
  for (int i = 0; i < replicas; ++i) place.replica_ranks.push_back(rank % shards + i * shards);
  for (int i = 0; i < shards * replicas; ++i) place.loss_ranks.push_back(i);
  return place;
}

}  // namespace stepforge::test
