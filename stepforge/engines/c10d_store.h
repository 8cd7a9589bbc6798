// SPDX-License-Identifier: Apache-2.0
// Stores of c10d: a table in the process of one rank or of torchrun's agent, accessed over TCP; or in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "stepforge/comm/key_store.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/launch/tcp_socket.h"

namespace c10d {
class Store;
}

namespace stepforge {

/// A KeyStore that c10d's own groups can use as well.
class C10dStore : public KeyStore {
 public:
  virtual c10d::Store& store() const = 0;
  /// Another object for the same connection.
  virtual std::unique_ptr<C10dStore> share() const = 0;
};

/// Opens the store that ranks in several processes share. If `is_server`, this process holds it and listens
/// at `address`, or on the socket `listener`, which is already bound to it. Other processes connect, and
/// retry until the store exists. Later the store counts as lost if it leaves a question unanswered for
/// train_seconds, at least 5 and at most 20. Throws PeerError with the address if there is no answer within
/// init_seconds, and UsageError if the port is in use.
std::unique_ptr<C10dStore> tcp_store(const TcpAddress& address, bool is_server, CommDeadlines deadlines,
                                     std::optional<int> listener = std::nullopt);

/// A store for ranks that are threads of this process: give each of them a share().
std::unique_ptr<C10dStore> memory_store();

}  // namespace stepforge
