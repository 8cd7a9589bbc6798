// SPDX-License-Identifier: Apache-2.0
// Point-to-point connections between the ranks of one group: the interface of an engine between hosts. The
// collectives on top of it are in message_communicator.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace stepforge {

/// How a wait for a message ended.
enum class WaitResult : uint8_t {
  done,
  interrupted,  ///< by interrupt()
  timed_out,    ///< the links can no longer be used
  closed        ///< the connection to that member is closed
};

/// A message in flight. Its bytes must stay unused until wait() has returned `done` or it is destroyed.
class PendingMessage {
 public:
  PendingMessage() = default;
  virtual ~PendingMessage() = default;
  PendingMessage(const PendingMessage&) = delete;
  PendingMessage& operator=(const PendingMessage&) = delete;

  virtual WaitResult wait(double seconds) = 0;
  /// Ends the current or the next wait(). Any thread may call it.
  virtual void interrupt() = 0;
};

/// Messages of one pair of members and one channel arrive in the order in which they were sent.
enum class Channel : uint8_t {
  headers,  ///< of collectives
  data,     ///< of collectives
  paired,   ///< of paired calls, from the sender to the receiver
  answers   ///< of paired calls, from the receiver to the sender
};

/// This rank's connections to the other members. receive() must ask for at least as many bytes as are sent
/// (not checked here); the rest stays unchanged. No memory is written before receive() is called.
class MessageLinks {
 public:
  MessageLinks() = default;
  virtual ~MessageLinks() = default;
  MessageLinks(const MessageLinks&) = delete;
  MessageLinks& operator=(const MessageLinks&) = delete;

  /// Both return at once; wait() reports a closed connection.
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
