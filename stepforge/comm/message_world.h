// Worlds whose ranks exchange messages: between hosts, or anywhere else. Ranks find each other and tell their
// failures through a store; the data's connections come from an engine.
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
  /// Equal on all ranks of this start, and of no other start that uses the same store.
  std::string run_id;
  int rank = 0;
  int size = 1;
  CommDeadlines deadlines;
  /// Memory in which a group's sums are staged.
  std::size_t staging_bytes = std::size_t{16} << 20;
  /// Whether rank 0's process holds the store: then it stays until the other ranks need it no more.
  bool rank_zero_holds_store = false;
  /// Called once, from any thread, when the whole world ends by a failure.
  std::function<void(const std::string& reason)> on_failure;
};

/// This process (or thread) as one rank. Waits until all are there; throws PeerError naming those that did
/// not come, that were started for another number of ranks, or that are there twice.
std::unique_ptr<World> message_world(MessageWorldOptions options, std::unique_ptr<KeyStore> store,
                                     LinksFactory connect);

}  // namespace stepforge
