#include "stepforge/launch/tcp_socket.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Null, with `failure` set, if the host has no address.
Addresses resolve(const TcpAddress& address, std::string& failure, int type = SOCK_STREAM, int flags = 0) {
  addrinfo wanted{};
  wanted.ai_socktype = type;
  wanted.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
  if (error != 0) failure = format("host \"{}\": {}", address.host, gai_strerror(error));
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

/// "" if it has none.
std::string numeric_host(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
}

Descriptor open_socket(int family, int type = SOCK_STREAM) {
  return Descriptor(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void set_option(const Descriptor& socket, int level, int option) {
  const int on = 1;
  setsockopt(socket.number(), level, option, &on, sizeof(on));
}

/// Bound and listening; none, with errno set, if that cannot be.
Descriptor listen_on(const sockaddr* address, socklen_t length) {
  Descriptor listener = open_socket(address->sa_family);
  if (!listener) return {};
  set_option(listener, SOL_SOCKET, SO_REUSEADDR);
  if (bind(listener.number(), address, length) != 0 || listen(listener.number(), 1024) != 0) return {};
  return listener;
}

/// On all interfaces: what a name means on its own host is often another address than what it means
/// elsewhere.
Descriptor listen_everywhere(int port) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  if (Descriptor listener = listen_on(reinterpret_cast<sockaddr*>(&any), sizeof(any))) return listener;
  if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) return {};
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = htons(static_cast<uint16_t>(port));
  return listen_on(reinterpret_cast<sockaddr*>(&any4), sizeof(any4));
}

}  // namespace

std::string TcpAddress::text() const {
  return host.find(':') == std::string::npos ? format("{}:{}", host, port) : format("[{}]:{}", host, port);
}

TcpAddress parse_tcp_address(const std::string& text, const std::string& option) {
  const std::size_t colon = text.rfind(':');
  TcpAddress address;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
      address.host = address.host.substr(1, address.host.size() - 2);
    }
    const char* end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (failure != std::errc() || stop != end) address.port = 0;
  }
  if (address.host.empty() || address.port < 1 || address.port > 65535) {
    throw UsageError(format("{} = \"{}\" is no HOST:PORT, as in node-0:29400", option, text));
  }
  return address;
}

bool is_literal(const TcpAddress& address) {
  std::string failure;
  return address.host == "localhost" || resolve(address, failure, SOCK_STREAM, AI_NUMERICHOST);
}

std::string address_towards(const TcpAddress& there, std::string& failure) {
  const Addresses addresses = resolve(there, failure, SOCK_DGRAM);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const Descriptor socket = open_socket(one->ai_family, SOCK_DGRAM);
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    auto* address = reinterpret_cast<sockaddr*>(&own);
    if (connect(socket.number(), one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(socket.number(), address, &length) == 0) {
      return numeric_host(address, length);
    }
    failure = format("no way to \"{}\" from this host: {}", there.host, std::strerror(errno));
  }
  return "";
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

int Descriptor::release() {
  return std::exchange(number_, -1);
}

Descriptor listen_at(const TcpAddress& address) {
  std::string failure;
  const Addresses addresses = resolve(address, failure);
  if (!addresses) throw UsageError(failure);
  const bool is_exact = is_literal(address);
  if (is_exact) {
    if (Descriptor listener = listen_on(addresses->ai_addr, addresses->ai_addrlen)) return listener;
  }
  if (!is_exact || errno == EADDRNOTAVAIL) {
    if (Descriptor listener = listen_everywhere(address.port)) return listener;
  }
  const std::string reason = std::strerror(errno);
  throw UsageError(format("cannot listen at {}: {}; another job may use this port: name another one",
                          address.text(), reason));
}

int port_of(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &length);
  // The port is at the same place in both families' addresses.
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Descriptor accept_one(const Descriptor& listener) {
  Descriptor socket(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) set_option(socket, IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

Descriptor connect_to(const TcpAddress& address, double seconds, std::string& failure) {
  const Addresses addresses = resolve(address, failure);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Descriptor socket = open_socket(one->ai_family);
    int error = 0;
    if (connect(socket.number(), one->ai_addr, one->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      pollfd polled{socket.number(), POLLOUT, 0};
      const bool is_ready = poll(&polled, 1, static_cast<int>(seconds * 1000)) == 1;
      socklen_t length = sizeof(error);
      getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (!is_ready) error = ETIMEDOUT;
    }
    if (error == 0) {
      set_option(socket, IPPROTO_TCP, TCP_NODELAY);
      return socket;
    }
    failure = std::strerror(error);
  }
  return {};
}

std::string peer_text(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  auto* peer = reinterpret_cast<sockaddr*>(&address);
  const std::string text = getpeername(socket.number(), peer, &length) == 0 ? numeric_host(peer, length) : "";
  return text.empty() ? "somebody" : text;
}

}  // namespace stepforge
