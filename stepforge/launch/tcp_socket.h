// SPDX-License-Identifier: Apache-2.0
// TCP addresses as this host sees them, and a listening socket.
#pragma once

#include <optional>
#include <string>

namespace stepforge {

/// "HOST:PORT", as in "node-0:29400" or "[fd00::7]:29400".
struct TcpAddress {
  std::string host;
  int port = 0;

  std::string text() const;
};

/// Throws UsageError if the text is not such an address; `option` names where it came from.
TcpAddress parse_tcp_address(const std::string& text, const std::string& option);

/// Whether the host is numeric, or "localhost": a name that does not depend on a host's own tables.
bool is_literal(const TcpAddress& address);
/// The numeric address from which this host would send to `there`; nothing is sent. "", with the reason in
/// `failure`, if the name is unknown or there is no route.
std::string address_towards(const TcpAddress& there, std::string& failure);
/// Whether a numeric address reaches only the host itself: 127.0.0.0/8 or ::1.
bool is_loopback(const std::string& address);

/// An open descriptor, closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  int release();

 private:
  int number_ = -1;
};

/// Listens on a free port of 127.0.0.1. Throws Error if the system refuses.
Descriptor listen_on_loopback();
int port_of(const Descriptor& listener);

}  // namespace stepforge
