// SPDX-License-Identifier: Apache-2.0
// Collectives made of messages between the members of a group, whatever carries them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "stepforge/comm/failure_note.h"
#include "stepforge/comm/group_communicator.h"
#include "stepforge/comm/message_links.h"

namespace stepforge {

/// What a group made of messages asks its world.
class MessageWatch {
 public:
  MessageWatch() = default;
  virtual ~MessageWatch() = default;
  MessageWatch(const MessageWatch&) = delete;
  MessageWatch& operator=(const MessageWatch&) = delete;

  /// Why the whole world ended.
  virtual const FailureNote& failure() const = 0;
  /// Ends the group on all members with `reason`, unless it has ended; returns once the group's note is set.
  virtual void fail_group(const std::string& key, FailureNote& note, const std::string& reason) = 0;
  /// Why a member's connection may be closed: "rank 2 has left the group", "rank 2 (process 71 on node-3) is
  /// gone".
  virtual std::string explain_loss(const std::string& key, int global_rank) = 0;
  /// Announces that this rank leaves the group; the others do not wait for it any more.
  virtual void leave(const std::string& key) = 0;
};

/// A rank of a group of two or more. A call begins with a header from each member to each, which also carries
/// the data if they are small: no rank uses data before all calls are compared, and each knows who has not
/// come. Then every rank sends to all others at once, and each confirms that it has received everything. A
/// slice is summed by the rank that owns it, in pieces, so that staging them needs little memory.
class MessageCommunicator : public GroupCommunicator {
 public:
  /// `key` names the group in its world, `note` is the group's; `watch` must outlive the object.
  MessageCommunicator(Membership membership, std::string key, std::unique_ptr<MessageLinks> links,
                      MessageWatch& watch, std::shared_ptr<FailureNote> note, double train_seconds,
                      std::size_t staging_bytes);
  ~MessageCommunicator() override;

  void abort(const std::string& reason) override;

  /// Wakes a waiting call after a note was set. Any thread may call it.
  void interrupt();

 private:
  void do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override;
  void do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) override;
  void do_all_reduce(std::span<std::byte> values) override;
  void do_broadcast(std::span<std::byte> bytes, int root) override;
  void do_barrier() override { agree(); }
  void check_failures() override;
  std::string end_group(const std::string& reason) override;
  std::string last_call_text(int member) const override;

  /// A member's call, as it travels.
  struct Header {
    uint64_t number = 0;
    uint64_t bytes = 0;
    int32_t root = 0;
    int32_t unit = 0;
    uint32_t kind = 0;
    uint32_t dtype = 0;
  };
  struct Message {
    int member;
    std::unique_ptr<PendingMessage> pending;
  };
  using Messages = std::vector<Message>;

  /// Compares call_ with the calls of all members, and brings their payloads.
  void agree(std::span<const std::byte> payload = {});
  void ask_for_headers();
  /// Where a member's message of this or the next call is.
  std::span<std::byte> letter(int member, uint64_t call);
  std::span<const std::byte> payload(int member, std::size_t bytes);
  static CollectiveCall call_of(const Header& header);
  /// The other members, in another order on each rank, so that they do not all send to the same one.
  std::vector<int> others() const;

  void gather_slices(const std::function<std::span<std::byte>(int)>& slice);
  void reduce_slices(const std::function<std::span<const std::byte>(int)>& slice, std::span<std::byte> own);
  /// Ends a call that sent data: each member confirms that it has received all of them.
  void confirm();

  void send(Messages& messages, std::span<const std::byte> bytes, int member, Channel channel);
  void receive(Messages& messages, std::span<std::byte> bytes, int member, Channel channel);
  void wait_for_all(const Messages& messages);
  Arrival wait_for(PendingMessage& pending);

  void close_links();
  [[noreturn]] void explain_loss(int member);
  [[noreturn]] void explain_delay(std::span<const Message> messages);

  std::string key_;
  std::unique_ptr<MessageLinks> links_;  ///< none after a failure, so that no message writes to memory
  MessageWatch& watch_;
  std::shared_ptr<FailureNote> note_;
  double train_seconds_;
  std::size_t staging_bytes_;
  std::vector<Header> last_headers_;  ///< of each member; number 0 before its first call
  std::vector<std::byte> staging_;
  std::vector<std::byte> letters_;  ///< two for each member: of this call and the next
  Messages coming_headers_;
  // A rank that receives from a process that dies learns of it; one that only sends does not always (Gloo).
  // So a rank waits for its sends only after the receiver has confirmed them.
  Messages sent_;         ///< data of this call
  Messages unconfirmed_;  ///< headers and confirmations, until the next call's headers
  std::mutex mutex_;
  PendingMessage* waited_ = nullptr;  ///< guarded by mutex_
};

}  // namespace stepforge
