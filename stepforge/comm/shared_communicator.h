// SPDX-License-Identifier: Apache-2.0
// Collectives through an arena of shared memory, for threads and processes alike.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/group_communicator.h"
#include "stepforge/comm/shared_arena.h"

namespace stepforge {

/// The state of a world that a waiting rank checks.
class WorldStatus {
 public:
  WorldStatus() = default;
  virtual ~WorldStatus() = default;
  WorldStatus(const WorldStatus&) = delete;
  WorldStatus& operator=(const WorldStatus&) = delete;

  /// Set if the whole world has failed.
  virtual const FailureNote& failure() const = 0;
  /// False once the process of that rank of the world has ended.
  virtual bool is_alive(int global_rank) const = 0;
  /// When that rank last looked for what it waits for, in milliseconds of the host's monotonic clock.
  virtual std::atomic<int64_t>& last_look(int global_rank) const = 0;
};

/// One rank of a group of two or more. Data pass through the staging buffers in rounds: each rank writes
/// round k + 1 before it reads round k of the others, so that copying in and out overlap.
///
/// Each rank records its call before the first round; no rank reads data before all calls are compared.
///
/// Messages of pairs use the same staging buffers, but rounds of their own, which only the two ranks count.
class SharedCommunicator : public GroupCommunicator {
 public:
  /// `world` must outlive the object.
  SharedCommunicator(Membership membership, SharedArena arena, const WorldStatus& world,
                     double train_seconds);
  /// Ranks that still wait for this one throw PeerError.
  ~SharedCommunicator() override;

  /// Joins the group and waits for the others. Throws PeerError naming the members that do not join.
  void arrive(double init_seconds);

  void abort(const std::string& reason) override;

 private:
  using Progress = Counter RankSlot::*;

  void do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override;
  void do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) override;
  void do_all_reduce(std::span<std::byte> values) override;
  void do_broadcast(std::span<std::byte> bytes, int root) override;
  void do_barrier() override;
  void do_all_to_all(const Parts<const std::byte>& outgoing, const Parts<std::byte>& incoming) override;
  void do_send_receive(Transfer<const std::byte> outgoing, Transfer<std::byte> incoming) override;
  void check_failures() override;
  std::string end_group(const std::string& reason) override;
  std::string last_call_text(int member) const override;

  /// Runs one call: `write` fills this rank's staging buffer for a round, `reduce` (or kNoReduction) sums all
  /// ranks' data into it, `read` reads the others' buffers.
  template <typename Write, typename Reduce, typename Read>
  void run_rounds(uint64_t rounds, const Write& write, const Reduce& reduce, const Read& read);
  void small_all_reduce(std::span<std::byte> values);
  void large_all_reduce(std::span<std::byte> values);
  /// The most bytes that a member sends to another in an all-to-all. Ends the group and throws PeerError if
  /// the sizes of a pair differ.
  std::size_t compare_sizes(const Parts<const std::byte>& outgoing, const Parts<std::byte>& incoming);
  /// output = the sum over all members of `bytes` bytes at `offset` in their staging buffers; `own` replaces
  /// this rank's buffer.
  void sum_staged(uint64_t round, std::size_t offset, const std::byte* own, std::byte* output,
                  std::size_t bytes);

  void wait_for_all(Progress progress, uint64_t target);
  void compare_calls();

  /// Waits for a member's counter. `progress`: the counter's kind, to name all members that are late at the
  /// deadline; nullptr for a counter of one pair.
  void wait_for(Counter& counter, uint64_t target, int member, double seconds, Progress progress = nullptr);
  void check_member(const Counter& counter, uint64_t target, int member);
  /// Whether members have waited for others in the last half of a deadline of `seconds`.
  bool all_wait(const std::vector<int>& members, double seconds) const;

  SharedArena arena_;
  const WorldStatus& world_;
  double train_seconds_;
  uint64_t round_ = 0;                     ///< number of the group's rounds before this collective
  std::vector<const std::byte*> sources_;  ///< of sum_staged; a member to avoid allocations
};

}  // namespace stepforge
