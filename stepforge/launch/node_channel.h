// Messages between the launchers of a job's nodes: one JSON object a line over TCP.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/launch/life_signs.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

/// One connection. Reading and writing never wait. A line that is too long or no JSON object closes it.
class NodeChannel {
 public:
  /// A longer line is none of ours.
  static constexpr std::size_t most_bytes = std::size_t{256} << 10;

  /// `signs` sends the other end signs of life.
  NodeChannel(Descriptor socket, LifeSigns& signs);

  int descriptor() const { return outbox_->descriptor(); }
  /// False once the other end has closed, said something malformed, or said nothing for `silence` seconds.
  bool is_open() const { return closed_because_.empty(); }
  const std::string& closed_because() const { return closed_because_; }
  /// The other end's address.
  const std::string& peer() const { return peer_; }

  /// Sends as much as goes out now; the rest goes with the next call of send or receive.
  void send(const Json& message);
  /// What came since the last call, without the signs of life.
  std::vector<Json> receive(double silence);
  /// Closes it, for what it sent.
  void close(const std::string& reason);
  /// Whether something is still to be sent.
  bool has_unsent() const { return outbox_->has_unsent(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Sends it after what is unsent; closes a connection that is broken.
  void put(std::string_view text);

  std::shared_ptr<NodeOutbox> outbox_;
  std::string peer_;
  std::string closed_because_;
  std::string unread_;
  Clock::time_point last_heard_ = Clock::now();
};

}  // namespace stepforge
