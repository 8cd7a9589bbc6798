// SPDX-License-Identifier: Apache-2.0
// Collectives through an arena of shared memory, the same between threads and between processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stepforge/comm/group_communicator.h"
#include "stepforge/comm/shared_arena.h"

namespace stepforge {

/// What a waiting rank asks its world.
class WorldWatch {
 public:
  WorldWatch() = default;
  virtual ~WorldWatch() = default;
  WorldWatch(const WorldWatch&) = delete;
  WorldWatch& operator=(const WorldWatch&) = delete;

  /// Why the whole world ended.
  virtual const FailureNote& failure() const = 0;
  /// False once the process of that rank of the world has ended.
  virtual bool is_alive(int global_rank) const = 0;
};

/// A rank of a group of two or more. Data pass through the staging buffers in rounds: each rank writes
/// round k + 1 before it reads round k of the others, so copying in and out overlap.
///
/// With the first round of a call comes the call itself; no rank reads data before all calls are compared.
class SharedCommunicator : public GroupCommunicator {
 public:
  /// `watch` must outlive the object.
  SharedCommunicator(Membership membership, SharedArena arena, const WorldWatch& watch, double train_seconds);
  /// Others that still wait for this rank throw PeerError.
  ~SharedCommunicator() override;

  /// Joins the group and waits for the others. Throws PeerError naming the members that do not come.
  void arrive(double init_seconds);

  void abort(const std::string& reason) override;

 private:
  using Progress = Counter RankSlot::*;

  void do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override;
  void do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) override;
  void do_all_reduce(std::span<std::byte> values) override;
  void do_broadcast(std::span<std::byte> bytes, int root) override;
  void do_barrier() override;
  void check_failures() override;
  std::string end_group(const std::string& reason) override;
  std::string last_call_text(int member) const override;

  /// Runs one call: `write` fills this rank's staging buffer for a round, `reduce` (or no_reduction) sums in it
  /// what all have written, `read` uses the others' buffers.
  template <typename Write, typename Reduce, typename Read>
  void run_rounds(uint64_t rounds, const Write& write, const Reduce& reduce, const Read& read);
  void small_all_reduce(std::span<std::byte> values);
  void large_all_reduce(std::span<std::byte> values);
  /// output = the sum over all members of `bytes` at `offset` of their staging buffers, with `own` in place
  /// of this rank's.
  void sum_staged(uint64_t round, std::size_t offset, const std::byte* own, std::byte* output,
                  std::size_t bytes);

  void wait_for_all(Progress progress, uint64_t target);
  void compare_calls();

  // Waiting and failing.
  void wait_for(Progress progress, uint64_t target, int member, double seconds);
  void check_member(Progress progress, uint64_t target, int member);

  SharedArena arena_;
  const WorldWatch& watch_;
  double train_seconds_;
  uint64_t round_ = 0;                     ///< rounds over the life of the group, before this collective
  std::vector<const std::byte*> sources_;  ///< of sum_staged; kept for its memory
};

}  // namespace stepforge
