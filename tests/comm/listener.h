// Sockets of the loopback for tests.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace stepforge::testing {

/// A socket bound to a free port of the loopback.
class Listener {
 public:
  Listener() : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(descriptor_, 128), 0);
    getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(descriptor_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int descriptor() const { return descriptor_; }
  int port() const { return port_; }

 private:
  int descriptor_;
  int port_ = 0;
};

/// A port that was free a moment ago.
inline int free_port() {
  return Listener().port();
}

}  // namespace stepforge::testing
