// SPDX-License-Identifier: Apache-2.0
// Ranks on Gloo: threads with a store in memory, or processes with a store over TCP.
#pragma once

#include "stepforge/comm/message_world.h"
#include "stepforge/engines/c10d_store.h"
#include "stepforge/engines/gloo_links.h"
#include "tests/launch/listener.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {

inline MessageWorldOptions options_of(int rank, int size, CommDeadlines deadlines) {
  MessageWorldOptions options;
  options.run_id = "test";
  options.rank = rank;
  options.size = size;
  options.deadlines = deadlines;
  options.staging_bytes = 32 << 10;  // so that most sums need several rounds
  return options;
}

/// A world over Gloo on the loopback interface.
inline std::unique_ptr<World> gloo_world(std::unique_ptr<C10dStore> store, MessageWorldOptions options) {
  LinksFactory links = gloo_links(*store, {"", "127.0.0.1"}, options.deadlines.init_seconds);
  return message_world(std::move(options), std::move(store), std::move(links));
}

inline std::vector<std::string> run_gloo_threads(int size, const RankBody& body, CommDeadlines deadlines) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const auto store = memory_store();
  return run_rank_threads(size, [&](int rank) {
    const auto world = gloo_world(store->share(), options_of(rank, size, deadlines));
    return body(*world);
  });
}

/// Starts `size` ranks as processes over TCP; rank 0's process holds the store.
inline void start_gloo_processes(RankProcesses& processes, int size, const RankBody& body,
                                 CommDeadlines deadlines) {
  const Listener listener;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&, rank] {
      auto store = tcp_store({"127.0.0.1", listener.port()}, rank == 0, deadlines,
                             rank == 0 ? std::optional(listener.descriptor()) : std::nullopt);
      if (rank != 0) close(listener.descriptor());
      MessageWorldOptions options = options_of(rank, size, deadlines);
      options.rank_zero_holds_store = true;
      const auto world = gloo_world(std::move(store), std::move(options));
      return body(*world);
    });
  }
}

inline std::vector<std::string> run_gloo_processes(int size, const RankBody& body, CommDeadlines deadlines) {
  RankProcesses processes;
  start_gloo_processes(processes, size, body, deadlines);
  return processes.results();
}

inline RankRunner as_gloo_threads() {
  return {"GlooThreads", run_gloo_threads};
}
inline RankRunner as_gloo_processes() {
  return {"GlooProcesses", run_gloo_processes};
}

}  // namespace stepforge::testing
