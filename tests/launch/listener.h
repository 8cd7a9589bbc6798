// SPDX-License-Identifier: Apache-2.0
// Loopback sockets for tests.
#pragma once

#include "stepforge/launch/tcp_socket.h"

namespace stepforge::testing {

/// A socket that listens on a free port of the loopback.
class Listener {
 public:
  int descriptor() const { return socket_.number(); }
  int port() const { return port_of(socket_); }

 private:
  Descriptor socket_ = listen_on_loopback();
};

/// A port that was free a moment ago.
inline int free_port() {
  return Listener().port();
}

}  // namespace stepforge::testing
