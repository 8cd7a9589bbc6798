// Connections among the ranks of one group that carry messages from one member to another: what an engine
// between hosts has to offer. Everything else is the same for all of them (message_communicator.h).
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
  late,         ///< the time was over; the links are of no use any more
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
enum class Channel : uint8_t { words, data };

/// This rank's connections to the other members. A receiver asks for as many bytes as are sent, or for more,
/// of which the rest stays as it is: that is not checked here. Nothing is written to a receiver's memory
/// before it has asked for the message.
class MessageLinks {
 public:
  MessageLinks() = default;
  virtual ~MessageLinks() = default;
  MessageLinks(const MessageLinks&) = delete;
  MessageLinks& operator=(const MessageLinks&) = delete;

  /// Both start a message and return at once; a closed connection is told by its wait().
  virtual std::unique_ptr<PendingMessage> send(std::span<const std::byte> bytes, int member,
                                               Channel channel) = 0;
  virtual std::unique_ptr<PendingMessage> receive(std::span<std::byte> bytes, int member,
                                                  Channel channel) = 0;
};

/// Connects the members of a group, all of whom call it at the same time. `key` names the group, and no other
/// of this job. Throws Error if a connection cannot be made.
using LinksFactory =
    std::function<std::unique_ptr<MessageLinks>(const std::string& key, int member, int size)>;

}  // namespace stepforge
