#include "comm/node_channel.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "base/error.h"
#include "base/format.h"

namespace stepforge {

namespace {

constexpr std::chrono::seconds life_sign_interval{2};
constexpr JsonLimits limits{.max_bytes = NodeChannel::most_bytes, .max_depth = 4};

}  // namespace

NodeChannel::NodeChannel(Descriptor socket) : socket_(std::move(socket)), peer_(peer_text(socket_)) {}

void NodeChannel::close(const std::string& reason) {
  if (!is_open()) return;
  closed_because_ = reason;
  socket_ = Descriptor();
  unsent_.clear();
}

void NodeChannel::send(const Json& message) {
  if (!is_open()) return;
  // What ranks wrote may be no UTF-8.
  unsent_ += message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  last_sent_ = Clock::now();
  flush();
}

void NodeChannel::flush() {
  while (!unsent_.empty()) {
    const ssize_t count = ::send(socket_.number(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) return close(std::strerror(errno));
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

std::vector<Json> NodeChannel::receive(double silence) {
  std::vector<Json> messages;
  if (!is_open()) return messages;
  flush();
  std::array<char, 65536> buffer{};
  for (;;) {
    if (!is_open()) return messages;
    const ssize_t count = recv(socket_.number(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      close(count == 0 ? "it closed the connection" : std::strerror(errno));
      break;
    }
    last_heard_ = Clock::now();
    unread_.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = unread_.find('\n'); end != std::string::npos; end = unread_.find('\n')) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      if (line.empty()) continue;  // a sign of life
      try {
        messages.push_back(parse_json(line, "a message of " + peer_, limits));
      } catch (const Error& error) {
        close(error.what());
        return messages;
      }
    }
    if (unread_.size() > most_bytes) close("it sent a line that is too long");
  }
  if (!is_open()) return messages;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - last_heard_).count() > silence) {
    close(format("it was silent for {} s", silence));
  } else if (now - last_sent_ > life_sign_interval) {
    unsent_ += "\n";
    last_sent_ = now;
    flush();
  }
  return messages;
}

}  // namespace stepforge
