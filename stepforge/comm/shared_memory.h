// SPDX-License-Identifier: Apache-2.0
// Worlds whose ranks share one host's memory: threads of one process, or processes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// A wait for other ranks ends with PeerError after these times, or after twice as long if those ranks are waiting
/// themselves. So if many ranks wait for each other, those that wait for the missing rank report it.
struct CommDeadlines {
  double init_seconds = 300;   ///< for creating a world or a group
  double train_seconds = 100;  ///< for any step of a collective
};

/// Bytes of one staging buffer; each rank has two in each group. Larger data are copied in pieces.
constexpr std::size_t kDefaultStagingBytes = std::size_t{512} << 10;

/// Worlds for `size` ranks that are threads of this process; the i-th is for the thread of rank i.
std::vector<std::unique_ptr<World>> thread_worlds(int size, CommDeadlines deadlines = {},
                                                  std::size_t staging_bytes = kDefaultStagingBytes);

/// This process as one of `size` ranks on this host. All ranks must give the same `run_id`, which no other
/// job of this user may use at the same time. Waits until all have joined; throws PeerError naming those that
/// did not.
///
/// Memory is mapped from files in shared_folder(), whose names are removed as soon as all ranks have opened
/// them. Names left by killed jobs are recognized by their free locks, and removed by the next job. If a
/// process ends, its lock is released, and ranks that wait for it throw PeerError within a second.
std::unique_ptr<World> process_world(const std::string& run_id, int rank, int size,
                                     CommDeadlines deadlines = {},
                                     std::size_t staging_bytes = kDefaultStagingBytes);

/// The ranks of one host in a larger world.
struct LocalRanks {
  std::vector<int> ranks;  ///< global ranks, ascending
  int rank = 0;            ///< of this process, one of them
  int world_size = 1;
};

/// A world that reaches only the ranks of one host.
class LocalWorld : public World {
 public:
  /// Like abort(), for a reason that already names the rank.
  virtual void fail(const std::string& reason) = 0;
};

/// Like process_world, for the processes of one host; groups may contain only their ranks.
std::unique_ptr<LocalWorld> local_world(const std::string& run_id, const LocalRanks& host,
                                        CommDeadlines deadlines = {},
                                        std::size_t staging_bytes = kDefaultStagingBytes);

}  // namespace stepforge
