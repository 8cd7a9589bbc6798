// Plain TCP for the launchers' control connections: non-blocking sockets, each owned by one object. And what
// addresses are to this host.
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

/// Throws UsageError unless the text is such an address; `option` is where it came from.
TcpAddress parse_tcp_address(const std::string& text, const std::string& option);

/// Whether the host means the same everywhere, or this host only and is meant so: numbers, or "localhost".
bool is_literal(const TcpAddress& address);
/// The address from which this host would send there, in numbers; nothing is sent. "", with the reason in
/// `failure`, if the name is unknown or there is no way.
std::string address_towards(const TcpAddress& there, std::string& failure);
/// Whether an address in numbers is one by which a host reaches itself only: 127.0.0.0/8 or ::1.
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

/// Listens at the address, or at that port of all addresses of this host if the host's name is that of
/// another interface; port 0 takes a free one. Throws UsageError if the port is in use or the name is
/// unknown.
Descriptor listen_at(const TcpAddress& address);
int port_of(const Descriptor& listener);
/// Somebody who connected; none if nobody waits.
Descriptor accept_one(const Descriptor& listener);

/// One attempt to connect within `seconds`; none, with the reason in `failure`, if it fails: also a
/// name that is not known yet.
Descriptor connect_to(const TcpAddress& address, double seconds, std::string& failure);
/// The address at the other end.
std::string peer_text(const Descriptor& socket);

}  // namespace stepforge
