// SPDX-License-Identifier: Apache-2.0
// The common part of all engines: argument checks, the agreement of all ranks on each call, and error texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"
#include "stepforge/comm/parts.h"

namespace stepforge {

/// One rank in a group.
struct Membership {
  std::string name;        ///< of the group, for messages
  std::vector<int> ranks;  ///< the members' ranks in the world, ascending
  int rank = 0;            ///< this rank's index among them
};

/// The membership of `rank` in that group of a world of `size` ranks. Throws Error unless the ranks ascend,
/// belong to the world and include `rank`.
Membership member_of(const std::string& name, const std::vector<int>& ranks, int rank, int size);

/// Throws Error unless `whole_bytes` is `size` times `part_bytes`.
void check_parts(std::size_t part_bytes, std::size_t whole_bytes, int size);

/// Throws Error unless `root` is the index of a member.
void check_root(int root, int size);

/// Throws Error unless there is one size for each of `size` members and they add up to `bytes`. `buffer` is
/// its name for the message.
void check_sizes(const char* buffer, std::size_t bytes, std::span<const std::size_t> sizes, int size);

/// The checks of an all-to-all of `rank` (an index) in a group of `size` ranks. Throws Error.
void check_all_to_all(std::size_t outgoing_bytes, std::span<const std::size_t> outgoing_sizes,
                      std::size_t incoming_bytes, std::span<const std::size_t> incoming_sizes, int rank,
                      int size);

/// Throws Error unless `peer` is the index of a member other than `rank`.
void check_peer(CollectiveKind kind, int peer, int rank, int size);

/// The checks of a send_receive. Throws Error unless `to` and `from` are members, both or none of them `rank`
/// itself, which sends itself as much as it receives.
void check_send_receive(std::size_t outgoing_bytes, int to, std::size_t incoming_bytes, int from, int rank,
                        int size);

/// Runs this rank's argument checks. A failed check ends the group, because its other members would wait for
/// the call, and is rethrown.
template <typename Check>
void check_arguments(Communicator& group, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    group.abort(error.what());
    throw;
  }
}

/// "the creation of group "fsdp""
std::string creation_text(const std::string& group);

/// The largest number of missing ranks that an error names.
inline constexpr std::size_t kMostNamedRanks = 8;
/// "rank 1 (not connected), rank 2 (not connected) and 4,093 more": `named` of `count` ranks.
std::string named_ranks_text(const std::vector<std::string>& named, int64_t count);

/// The error text if `rank` and `other_rank` (global ranks) made different calls as their call `number`.
std::string disagreement_text(const std::string& group, uint64_t number, int rank, const CollectiveCall& call,
                              int other_rank, const CollectiveCall& other_call);

/// The error text if `sender` sends another size in a call than `receiver` (global ranks) expects.
std::string size_disagreement_text(const std::string& group, const CollectiveCall& call, int sender,
                                   uint64_t sent_bytes, int receiver, uint64_t expected_bytes);

/// What a rank sends to a member, or receives from it.
template <typename Byte>
struct Transfer {
  std::span<Byte> bytes;
  int peer = kNoPeer;  ///< an index in the group; kNoPeer: nothing, not even an empty message

  static constexpr int kNoPeer = -1;
  bool is_none() const { return peer == kNoPeer; }
};

/// Base of the engines' communicators. An engine moves the bytes of calls whose arguments are checked, and
/// calls compare() for each member before it uses that member's data.
class GroupCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) final;
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) final;
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) final;
  void broadcast(std::span<std::byte> bytes, int root) final;
  void barrier() final;
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes, int unit) final;
  void send(std::span<const std::byte> bytes, int peer) final;
  void receive(std::span<std::byte> bytes, int peer) final;
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) final;

 protected:
  explicit GroupCommunicator(Membership membership);

  // The engine's part of a call; call_ describes it.
  virtual void do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) = 0;
  virtual void do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) = 0;
  virtual void do_all_reduce(std::span<std::byte> values) = 0;
  virtual void do_broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void do_barrier() = 0;
  /// This rank's own part is copied already. The engine compares the sizes of each pair: check_transfer.
  virtual void do_all_to_all(const Parts<const std::byte>& outgoing, const Parts<std::byte>& incoming) = 0;
  /// Sends and receives at the same time, one of them or both, with members other than this one. The engine
  /// compares the sizes: check_transfer.
  virtual void do_send_receive(Transfer<const std::byte> outgoing, Transfer<std::byte> incoming) = 0;

  /// Throws PeerError if the group or the world has failed.
  virtual void check_failures() = 0;
  /// Ends the group on all ranks; returns the reason, which is the first if the group had ended already.
  virtual std::string end_group(const std::string& reason) = 0;
  /// The last call of the whole group that a member which missed a deadline has reached; see call_text.
  virtual std::string last_call_text(int member) const = 0;

  /// Ends the group and throws PeerError.
  [[noreturn]] void fail(const std::string& reason);
  /// Ends the group and throws PeerError unless the member's call is the same as this rank's.
  void compare(int member, const CollectiveCall& theirs);
  /// Ends the group and throws PeerError unless a member expects as many bytes as another one sends to it.
  void check_transfer(int sender, uint64_t sent_bytes, int receiver, uint64_t expected_bytes);
  /// Ends the group and throws PeerError because of `loss`: "rank 2 has left the group".
  [[noreturn]] void fail_at_loss(const std::string& loss);
  [[noreturn]] void fail_at_deadline(const std::vector<int>& missing_members, double seconds);

  /// "last reached all_gather of 64 bytes, its call 3"; "" in a paired call if there was no call of the whole group,
  /// since messages are not recorded.
  std::string call_text(uint64_t number, const CollectiveCall& call) const;
  /// "all_gather of 64 bytes, call 3 of group "fsdp""
  std::string here_text() const;
  int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  int world_rank() const { return world_rank(rank_); }

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  const int size_;
  CollectiveCall call_;  ///< the current or last one
  uint64_t calls_ = 0;   ///< number of calls of the whole group begun, that is without paired ones

 private:
  template <typename Check>
  void begin(const CollectiveCall& call, const Check& check);
};

}  // namespace stepforge
