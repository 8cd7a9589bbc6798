// Collectives through a arena of shared memory, the same between threads and between processes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/shared_arena.h"

namespace stepforge {

/// What a rank that waits asks of its world.
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
/// The first round of a call carries what was called; nobody reads data before all have agreed.
class SharedCommunicator : public Communicator {
 public:
  /// `ranks`: the members' numbers in the world, for messages; `rank`: this one's number among them. `watch`
  /// must outlive the object.
  SharedCommunicator(std::string name, std::vector<int> ranks, int rank, SharedArena arena,
                     const WorldWatch& watch, double train_seconds);
  /// Others that still wait for this rank throw PeerError.
  ~SharedCommunicator() override;

  /// Tells the others that this rank is there, and waits for them. Throws PeerError naming who did not come.
  void arrive(double init_seconds);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override;
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override;
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void barrier() override;
  void abort(const std::string& reason) override;

 private:
  using Progress = Counter RankSlot::*;

  // One collective.
  void begin(const CollectiveCall& call);
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
  void check_failures() const;
  void check_member(Progress progress, uint64_t target, int member);
  [[noreturn]] void fail(const std::string& reason);
  [[noreturn]] void fail_at_deadline(Progress progress, uint64_t target, double seconds);
  std::string last_call_text(int member) const;
  std::string here_text() const;

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  int size_;
  SharedArena arena_;
  const WorldWatch& watch_;
  double train_seconds_;
  uint64_t calls_ = 0;  ///< collectives begun
  uint64_t round_ = 0;  ///< rounds over the life of the group, before this collective
  CollectiveCall call_;
  std::vector<const std::byte*> sources_;  ///< of sum_staged; kept for its memory
};

}  // namespace stepforge
