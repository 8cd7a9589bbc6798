// SPDX-License-Identifier: Apache-2.0
// Collectives over point-to-point messages between the members of a group.
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

/// The functions of a world that its message communicators use.
class GroupServices {
 public:
  GroupServices() = default;
  virtual ~GroupServices() = default;
  GroupServices(const GroupServices&) = delete;
  GroupServices& operator=(const GroupServices&) = delete;

  /// Set if the whole world has failed.
  virtual const FailureNote& failure() const = 0;
  /// Ends the group on all members with `reason`, unless it has ended; returns once the group's note is set.
  virtual void fail_group(const std::string& key, FailureNote& note, const std::string& reason) = 0;
  /// Why a member's connection is closed: "rank 2 has left the group", "rank 2 (process 71 on node-3) is
  /// gone".
  virtual std::string explain_loss(const std::string& key, int global_rank) = 0;
  /// Announces that this rank leaves the group; the others no longer wait for it.
  virtual void leave(const std::string& key) = 0;
};

/// One rank of a group of two or more. A call begins with a header from each member to every other, which
/// also carries small data: no rank uses data before all calls are compared, and each knows which members are
/// missing. Then every rank sends to all others at once, and each confirms that it has received everything. A
/// slice is summed by the rank that owns it, in pieces, which limits the memory for staging.
///
/// In a paired call the sender sends the size and the data at once; the receiver requests the data only
/// if the size is right, and confirms them.
class MessageCommunicator : public GroupCommunicator {
 public:
  /// `key` identifies the group in its world; `note` is set when the group fails; `services` must outlive
  /// this.
  MessageCommunicator(Membership membership, std::string key, std::unique_ptr<MessageLinks> links,
                      GroupServices& services, std::shared_ptr<FailureNote> note, double train_seconds,
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
  void do_barrier() override { exchange_calls(); }
  void do_all_to_all(const Parts<const std::byte>& outgoing, const Parts<std::byte>& incoming) override;
  void do_send_receive(Transfer<const std::byte> outgoing, Transfer<std::byte> incoming) override;
  void check_failures() override;
  std::string end_group(const std::string& reason) override;
  std::string last_call_text(int member) const override;

  /// A call, as it is sent.
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

  /// The sizes of a pair of members in an all-to-all, as one of them sees them.
  struct PairSizes {
    uint64_t sent = 0;
    uint64_t expected = 0;
  };

  /// Compares call_ with the calls of all members, and receives their payloads.
  void exchange_calls(std::span<const std::byte> payload = {});
  /// Starts to receive the headers of the next call.
  void receive_headers();
  /// The header and payload of a member for this or the next call.
  std::span<std::byte> header_buffer(int member, uint64_t call);
  std::span<const std::byte> payload(int member, std::size_t bytes);
  static CollectiveCall decode_call(const Header& header);
  /// The other members, in a different order on each rank, so that they do not all send to the same one
  /// first.
  std::vector<int> others() const;

  // A call posts its receives before its headers are exchanged, in the order of arrival: engines send a message only when
  // its receiver has requested it, so a late request costs another trip between the hosts. Data are sent only after the
  // sender has found that all calls agree.

  /// Starts to receive the slices of all others.
  Messages expect_slices(const std::function<std::span<std::byte>(int)>& slice);
  /// Sends this rank's slice to all others and waits for theirs.
  void gather_slices(const std::function<std::span<std::byte>(int)>& slice, const Messages& slices);
  /// Exchanges the calls, then sums the slices of all members for `own` in rounds. `expect_rest` is called once the
  /// receives of all rounds are posted, and posts those that come after.
  void reduce_slices(const std::function<std::span<const std::byte>(int)>& slice, std::span<std::byte> own,
                     const std::function<void()>& expect_rest);
  void expect_confirmations();
  /// Sends pair_sizes_ and waits for `theirs`. Ends the group and throws PeerError unless each member sends this rank
  /// as much as it expects, and expects as much as this rank sends.
  void compare_sizes(const std::vector<PairSizes>& theirs, const Messages& receives);
  /// The receiver's part of a paired call.
  void receive_message(Transfer<std::byte> incoming);
  /// Waits for the unconfirmed messages to a member that has begun a later call, so that they do not pile up.
  void settle(int member);
  /// Ends a call that sent data: each member confirms that it has received everything.
  void confirm();

  void start_send(Messages& messages, std::span<const std::byte> bytes, int member, Channel channel);
  void start_receive(Messages& messages, std::span<std::byte> bytes, int member, Channel channel);
  void wait_for_all(const Messages& messages);
  WaitResult wait_for(PendingMessage& pending);

  void close_links();
  [[noreturn]] void fail_at_closed_link(int member);
  [[noreturn]] void fail_at_timeout(std::span<const Message> messages);

  std::string key_;
  std::unique_ptr<MessageLinks> links_;  ///< null after a failure, so that no message writes to memory
  GroupServices& services_;
  std::shared_ptr<FailureNote> note_;
  double train_seconds_;
  std::size_t staging_bytes_;
  std::vector<Header> last_headers_;  ///< of each member; number 0 before its first call
  std::vector<std::byte> staging_;
  std::vector<std::byte> header_buffers_;  ///< two for each member: of this call and the next
  Messages header_receives_;
  std::vector<std::byte> confirmations_;  ///< of each member
  Messages confirmation_receives_;
  // If a process dies, ranks that receive from it notice; with Gloo, ranks that only send to it may not. So a
  // rank waits for its sends only after the receiver has confirmed them.
  Messages sent_;                      ///< data of this call
  std::vector<PairSizes> pair_sizes_;  ///< sent to the members by this all-to-all
  Messages unconfirmed_;  ///< headers and confirmations, kept until the next call's headers arrive
  std::mutex mutex_;
  PendingMessage* waiting_for_ = nullptr;  ///< guarded by mutex_
};

}  // namespace stepforge
