// SPDX-License-Identifier: Apache-2.0
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
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Null, with the reason in `failure`, if the name does not resolve.
Addresses resolve(const TcpAddress& address, std::string& failure, int type = SOCK_STREAM, int flags = 0) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) failure = format("host \"{}\": {}", address.host, gai_strerror(error));
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

/// "" if the address has no numeric form.
std::string numeric_host(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
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
    throw UsageError(format("{} = \"{}\" is not HOST:PORT, such as node-0:29400", option, text));
  }
  return address;
}

bool is_literal(const TcpAddress& address) {
  std::string failure;
  return address.host == "localhost" || resolve(address, failure, SOCK_STREAM, AI_NUMERICHOST);
}

std::string source_address(const TcpAddress& peer, std::string& failure) {
  const Addresses addresses = resolve(peer, failure, SOCK_DGRAM);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const Descriptor socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    auto* address = reinterpret_cast<sockaddr*>(&own);
    if (connect(socket.number(), one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(socket.number(), address, &length) == 0) {
      return numeric_host(address, length);
    }
    failure = format("this host has no route to \"{}\": {}", peer.host, std::strerror(errno));
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

Descriptor connect_to(const TcpAddress& address, double seconds) {
  std::string failure;
  const Addresses addresses = resolve(address, failure);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Descriptor socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool has_begun =
        connect(socket.number(), one->ai_addr, one->ai_addrlen) == 0 || errno == EINPROGRESS;
    pollfd connected{socket.number(), POLLOUT, 0};
    if (!has_begun || poll(&connected, 1, static_cast<int>(seconds * 1000)) != 1) continue;
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) continue;
    fcntl(socket.number(), F_SETFL, 0);
    return socket;
  }
  return {};
}

Descriptor listen_on_loopback() {
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!listener || bind(listener.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.number(), 1024) != 0) {
    throw Error(format("cannot listen on 127.0.0.1: {}", std::strerror(errno)));
  }
  return listener;
}

int port_of(const Descriptor& listener) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

}  // namespace stepforge
