// Collectives made of messages between the members of a group, whatever carries them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"
#include "stepforge/comm/failure_note.h"
#include "stepforge/comm/message_links.h"

namespace stepforge {

/// What a group made of messages asks of its world.
class MessageWatch {
 public:
  MessageWatch() = default;
  virtual ~MessageWatch() = default;
  MessageWatch(const MessageWatch&) = delete;
  MessageWatch& operator=(const MessageWatch&) = delete;

  /// Why the whole world ended.
  virtual const FailureNote& failure() const = 0;
  /// Makes `reason` that of all members of the group, unless one is known already; returns once the group's
  /// note is set.
  virtual void fail_group(const std::string& key, FailureNote& note, const std::string& reason) = 0;
  /// Why a member's connection may be closed: "rank 2 has left the group", "rank 2 (process 71 on node-3) is
  /// gone".
  virtual std::string explain_loss(const std::string& key, int global_rank) = 0;
  /// Tells the others that this rank leaves the group; they wait for it no more.
  virtual void leave(const std::string& key) = 0;
};

/// A rank of a group of two or more. A call begins with a message from each member to each that says what was
/// called, and carries the data if they are few: nobody uses data before all agree, and each rank knows who
/// has not come. Then every rank sends to all others at once, and each says when it has got everything. A sum
/// is formed by the rank whose slice it is, from pieces small enough that staging them needs little memory.
class MessageCommunicator : public Communicator {
 public:
  struct Membership {
    std::string name;        ///< of the group, for messages
    std::string key;         ///< of the group in its world
    std::vector<int> ranks;  ///< the members' numbers in the world
    int rank = 0;            ///< this one's number among them
  };

  /// `watch` must outlive the object; `note` is the group's.
  MessageCommunicator(Membership membership, std::unique_ptr<MessageLinks> links, MessageWatch& watch,
                      std::shared_ptr<FailureNote> note, double train_seconds, std::size_t staging_bytes);
  ~MessageCommunicator() override;

  int rank() const override { return membership_.rank; }
  int size() const override { return size_; }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override;
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override;
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void barrier() override;
  void abort(const std::string& reason) override;

  /// Wakes a call that waits, after a note was set. From any thread.
  void interrupt();

 private:
  /// What a member says at the beginning of a call.
  struct Words {
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

  /// Begins a call: compares it with those of all members, and brings their payloads.
  void begin(const CollectiveCall& call, std::span<const std::byte> payload = {});
  void ask_for_words();
  /// Where a member's message of this or the next call is.
  std::span<std::byte> letter(int member, uint64_t call);
  std::span<const std::byte> payload(int member, std::size_t bytes);
  void compare();
  static CollectiveCall call_of(const Words& words);
  /// The other members, beginning with another one on each rank, so that they do not all send to one.
  std::vector<int> others() const;

  void gather_slices(const std::function<std::span<std::byte>(int)>& slice);
  void reduce_slices(const std::function<std::span<const std::byte>(int)>& slice, std::span<std::byte> own,
                     DType dtype);
  /// Ends a call that sent data: each member says that it has got all of them.
  void confirm();

  void send(Messages& messages, std::span<const std::byte> bytes, int member, Channel channel);
  void receive(Messages& messages, std::span<std::byte> bytes, int member, Channel channel);
  void wait_for_all(const Messages& messages);
  Arrival wait_for(PendingMessage& pending);

  void check_failures();
  void close_links();
  [[noreturn]] void fail(const std::string& reason);
  [[noreturn]] void fail_at_loss(int member);
  [[noreturn]] void fail_at_deadline(std::span<const Message> messages);
  std::string last_call_text(int member) const;
  std::string here_text() const;
  int global(int member) const { return membership_.ranks[static_cast<std::size_t>(member)]; }

  Membership membership_;
  int size_;
  std::unique_ptr<MessageLinks> links_;  ///< none after a failure, so that no message writes to memory
  MessageWatch& watch_;
  std::shared_ptr<FailureNote> note_;
  double train_seconds_;
  std::size_t staging_bytes_;
  uint64_t calls_ = 0;  ///< begun
  CollectiveCall call_;
  std::vector<Words> last_words_;  ///< of each member; number 0 before its first call
  std::vector<std::byte> staging_;
  std::vector<std::byte> letters_;  ///< two for each member: of this call and the next
  Messages coming_words_;
  // Who waits for a message of a process that dies is told so; who only sends to it is not always (Gloo). So
  // a rank waits for what it sent when the receiver has said that it has got it.
  Messages sent_;         ///< data of this call
  Messages unconfirmed_;  ///< words and answers, until the next call's words
  std::mutex mutex_;
  PendingMessage* waited_ = nullptr;  ///< guarded by mutex_
};

}  // namespace stepforge
