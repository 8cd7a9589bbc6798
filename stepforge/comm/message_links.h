// SPDX-License-Identifier: Apache-2.0
// Connections that carry messages between the ranks of one group: the interface of an engine between hosts.
// Everything else is the same for all engines (message_communicator.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace stepforge {

/// How a wait for a message ended.
enum class Arrival : uint8_t {
  done,
  interrupted,  ///< by interrupt()
  late,         ///< the time is over; the links cannot be used any more
  lost          ///< the connection to that member is closed
};

/// A message on its way. Its bytes belong to it until wait() returned `done` or it was destroyed.
class PendingMessage {
 public:
  PendingMessage() = default;
  virtual ~PendingMessage() = default;
  PendingMessage(const PendingMessage&) = delete;
  PendingMessage& operator=(const PendingMessage&) = delete;

  virtual Arrival wait(double seconds) = 0;
  /// Ends a wait(), also one that has not begun. From any thread.
  virtual void interrupt() = 0;
};

/// Messages of one pair of members and one channel arrive in the order in which they were sent.
enum class Channel : uint8_t { headers, data };

/// This rank's connections to the other members. A receiver asks for at least as many bytes as are sent (not
/// checked here); the rest stays unchanged. Nothing is written to its memory before it has asked.
class MessageLinks {
 public:
  MessageLinks() = default;
  virtual ~MessageLinks() = default;
  MessageLinks(const MessageLinks&) = delete;
  MessageLinks& operator=(const MessageLinks&) = delete;

  /// Both start a message and return at once; its wait() reports a closed connection.
  virtual std::unique_ptr<PendingMessage> send(std::span<const std::byte> bytes, int member,
                                               Channel channel) = 0;
  virtual std::unique_ptr<PendingMessage> receive(std::span<std::byte> bytes, int member,
                                                  Channel channel) = 0;
};

/// Connects the members of a group, which all call it at the same time. `key` is unique to the group in this
/// job. Throws Error if a connection cannot be made.
using LinksFactory =
    std::function<std::unique_ptr<MessageLinks>(const std::string& key, int member, int size)>;

}  // namespace stepforge
