// Signs of life between launchers, whatever else they wait for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

/// What goes out on one connection: whole lines, and signs of life between them. Sending never waits. Only
/// the sign of life may come from another thread than the owner's.
class NodeOutbox {
 public:
  explicit NodeOutbox(Descriptor socket) : socket_(std::move(socket)) {}

  /// -1 once it is closed.
  int descriptor() const { return socket_.number(); }
  /// Sends `text` after what is unsent, as much as goes out now. 0, or errno if the connection is broken.
  int send(std::string_view text);
  /// What is unsent, or an empty line.
  void send_life_sign();
  bool has_unsent() const;
  void close();

 private:
  int flush();

  mutable std::mutex mutex_;
  Descriptor socket_;
  std::string unsent_;
};

/// Sends signs of life from a thread of its own: its process may wait long for a terminal or a disk.
class LifeSigns {
 public:
  explicit LifeSigns(std::chrono::milliseconds interval = std::chrono::seconds(2));

  /// From now on, for as long as the outbox is there.
  void add(const std::shared_ptr<NodeOutbox>& outbox);

 private:
  void run(const std::stop_token& stop, std::chrono::milliseconds interval);

  std::mutex mutex_;  ///< of outboxes_
  std::condition_variable_any stopped_;
  std::vector<std::weak_ptr<NodeOutbox>> outboxes_;
  std::jthread thread_;  ///< last: ends before what it uses
};

}  // namespace stepforge
