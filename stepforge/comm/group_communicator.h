// SPDX-License-Identifier: Apache-2.0
// What communicators do alike whatever carries the bytes: the checks of arguments, the agreement of all ranks
// on each call, and the texts of failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"

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

/// Runs this rank's checks of the arguments of a call. A failed check ends the group, since its other members
/// would wait for the call, and is rethrown.
template <typename Check>
void check_arguments(Communicator& group, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    group.abort(error.what());
    throw;
  }
}

/// Where a rank is that creates a group: "the creation of group "dp_shard"".
std::string creation_text(const std::string& group);

/// Why a group ends in which `rank` and `other_rank`, numbered in the world, made different calls as their
/// call `number`.
std::string disagreement_text(const std::string& group, uint64_t number, int rank, const CollectiveCall& call,
                              int other_rank, const CollectiveCall& other_call);

/// A communicator without its engine: an engine moves the bytes of calls whose arguments are checked, and
/// compares each call with those of the other members before it uses their data.
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

 protected:
  explicit GroupCommunicator(Membership membership);

  // One call each; call_ describes it.
  virtual void do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) = 0;
  virtual void do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) = 0;
  virtual void do_all_reduce(std::span<std::byte> values) = 0;
  virtual void do_broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void do_barrier() = 0;

  /// Throws PeerError if the group or the world has failed.
  virtual void check_failures() = 0;
  /// Ends the group on all ranks, unless it has ended; returns the reason that counts.
  virtual std::string end_group(const std::string& reason) = 0;
  /// Of a member that did not come before a deadline; see call_text.
  virtual std::string last_call_text(int member) const = 0;

  /// Ends the group and throws PeerError.
  [[noreturn]] void fail(const std::string& reason);
  /// Ends the group unless the member's call with this rank's number is the same as this rank's.
  void compare(int member, const CollectiveCall& theirs);
  /// Ends the group because of a member's loss, such as "rank 2 has left the group".
  [[noreturn]] void fail_at_loss(const std::string& loss);
  [[noreturn]] void fail_at_deadline(const std::vector<int>& missing_members, double seconds);

  /// "last reached all_gather of 64 bytes, its call 3"
  static std::string call_text(uint64_t number, const CollectiveCall& call);
  /// "all_gather of 64 bytes, call 3 of group "dp_shard""
  std::string here_text() const;
  int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  int world_rank() const { return world_rank(rank_); }

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  const int size_;
  CollectiveCall call_;  ///< the newest
  uint64_t calls_ = 0;   ///< begun

 private:
  template <typename Check>
  void begin(const CollectiveCall& call, const Check& check);
};

}  // namespace stepforge
