#include "engines/local_address.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"

namespace stepforge {

namespace {

/// The local end of a datagram socket connected there; "" if there is no way.
std::string local_end(const addrinfo& there) {
  const int descriptor = socket(there.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return "";
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  auto* address = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> text{};
  const bool is_known =
      connect(descriptor, there.ai_addr, there.ai_addrlen) == 0 &&
      getsockname(descriptor, address, &length) == 0 &&
      getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  close(descriptor);
  return is_known ? text.data() : "";
}

}  // namespace

std::string address_towards(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failure != 0) {
    throw UsageError(format("MASTER_ADDR = \"{}\": {}", host, gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (const std::string own = local_end(*address); !own.empty()) return own;
  }
  throw UsageError(format("no way to \"{}\" from this host: {}", host, std::strerror(errno)));
}

}  // namespace stepforge
