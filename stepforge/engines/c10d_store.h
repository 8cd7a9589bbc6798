// SPDX-License-Identifier: Apache-2.0
// Stores of c10d: a table in one rank's process or in torchrun's agent, reached over TCP; or in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "stepforge/comm/key_store.h"
#include "stepforge/launch/tcp_socket.h"

namespace c10d {
class Store;
}

namespace stepforge {

/// A KeyStore that c10d's own groups can use as well.
class C10dStore : public KeyStore {
 public:
  virtual c10d::Store& store() const = 0;
  /// Another object on the same connection.
  virtual std::unique_ptr<C10dStore> share() const = 0;
};

/// Opens the store that ranks of several processes share. `is_server`: this process holds it, listening at
/// `address`, or on the socket `listener` that is bound to it already. Others connect, and try again until it
/// is there. Throws PeerError naming the address without an answer within `seconds`, UsageError if the port
/// is in use.
std::unique_ptr<C10dStore> tcp_store(const TcpAddress& address, bool is_server, double seconds,
                                     std::optional<int> listener = std::nullopt);

/// A store for ranks that are threads of this process; share() it with each.
std::unique_ptr<C10dStore> memory_store();

}  // namespace stepforge
