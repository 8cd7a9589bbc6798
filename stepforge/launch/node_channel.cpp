#include "stepforge/launch/node_channel.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr JsonLimits limits{.max_bytes = NodeChannel::most_bytes, .max_depth = 4};

}  // namespace

NodeChannel::NodeChannel(Descriptor socket, LifeSigns& signs) : peer_(peer_text(socket)) {
  outbox_ = std::make_shared<NodeOutbox>(std::move(socket));
  signs.add(outbox_);
}

void NodeChannel::close(const std::string& reason) {
  if (!is_open()) return;
  closed_because_ = reason;
  outbox_->close();
}

void NodeChannel::send(const Json& message) {
  if (!is_open()) return;
  // What ranks wrote may be no UTF-8.
  put(message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void NodeChannel::put(std::string_view text) {
  if (const int failure = outbox_->send(text)) close(std::strerror(failure));
}

std::vector<Json> NodeChannel::receive(double silence) {
  std::vector<Json> messages;
  if (!is_open()) return messages;
  put("");
  std::array<char, 65536> buffer{};
  for (;;) {
    if (!is_open()) return messages;
    const ssize_t count = recv(descriptor(), buffer.data(), buffer.size(), 0);
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
  if (std::chrono::duration<double>(Clock::now() - last_heard_).count() > silence) {
    close(format("it was silent for {} s", silence));
  }
  return messages;
}

}  // namespace stepforge
