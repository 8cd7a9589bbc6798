// SPDX-License-Identifier: Apache-2.0
// Worlds whose ranks exchange point-to-point messages, on one or several hosts. Ranks find each other and
// report failures through a store; an engine provides the connections for data.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/key_store.h"
#include "stepforge/comm/message_links.h"
#include "stepforge/comm/shared_memory.h"

namespace stepforge {

struct MessageWorldOptions {
  /// The same on all ranks of this start, and different in every other start that uses the same store.
  std::string run_id;
  int rank = 0;
  int size = 1;
  CommDeadlines deadlines;
  /// Bytes per group for staging sums.
  std::size_t staging_bytes = std::size_t{16} << 20;
  /// Whether rank 0's process holds the store; it then waits in the destructor until no rank needs the store.
  bool rank_zero_holds_store = false;
  std::string transport = "messages";  ///< see World::transport
  /// Called once, from any thread, when the whole world fails.
  std::function<void(const std::string& reason)> on_failure;
};

/// This process (or thread) as one rank. Waits until all have joined; throws PeerError naming ranks that did
/// not join, were started for a different number of ranks, or exist twice.
std::unique_ptr<World> message_world(MessageWorldOptions options, std::unique_ptr<KeyStore> store,
                                     LinksFactory connect);

}  // namespace stepforge
