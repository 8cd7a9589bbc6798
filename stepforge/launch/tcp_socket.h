// SPDX-License-Identifier: Apache-2.0
// TCP addresses, a listening socket and a connected one.
#pragma once

#include <optional>
#include <string>

namespace stepforge {

/// A host name or numeric address and a port: "HOST:PORT", as in "node-0:29400" or "[fd00::7]:29400".
struct TcpAddress {
  std::string host;
  int port = 0;

  /// "HOST:PORT"; an IPv6 address is put in brackets.
  std::string text() const;
};

/// Throws UsageError if the text is not HOST:PORT; the message names `option`, where the text came from.
TcpAddress parse_tcp_address(const std::string& text, const std::string& option);

/// Whether the host is numeric or "localhost", so that it does not depend on name resolution.
bool is_literal(const TcpAddress& address);
/// The numeric source address for traffic to `peer`; nothing is sent. "", with the reason in `failure`, if
/// the name does not resolve or there is no route.
std::string source_address(const TcpAddress& peer, std::string& failure);
/// Whether a numeric address is in 127.0.0.0/8 or ::1.
bool is_loopback(const std::string& address);

/// Owns an open file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  /// Gives up ownership and returns the number; -1 if there is none.
  int release();

 private:
  int number_ = -1;
};

/// A connected, blocking socket; none if nobody answers at the address, or not within `seconds`.
Descriptor connect_to(const TcpAddress& address, double seconds);
/// Listens on a free port of 127.0.0.1. Throws Error if that fails.
Descriptor listen_on_loopback();
/// The local port of the socket.
int port_of(const Descriptor& listener);

}  // namespace stepforge
