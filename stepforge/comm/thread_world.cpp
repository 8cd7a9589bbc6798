// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process. Arenas are plain memory, created by the first rank of a group.
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/comm/shared_communicator.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/comm/single_communicator.h"

namespace stepforge {

namespace {

/// The state that the worlds of all ranks share.
class Hub : public WorldStatus {
 public:
  Hub(int size, CommDeadlines deadlines, std::size_t staging_bytes)
      : size_(size),
        deadlines_(deadlines),
        staging_bytes_(staging_bytes),
        last_looks_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }
  const CommDeadlines& deadlines() const { return deadlines_; }
  const FailureNote& failure() const override { return *failure_; }
  std::shared_ptr<const FailureNote> shared_failure() const { return failure_; }
  void fail(const std::string& reason) { failure_->set(reason); }
  bool is_alive(int /*global_rank*/) const override { return true; }
  std::atomic<int64_t>& last_look(int global_rank) const override {
    return last_looks_.at(static_cast<std::size_t>(global_rank));
  }

  /// The same memory for each member of the group. Once all members have it, the name can be used again.
  SharedArena arena(const std::string& name, const std::vector<int>& ranks) {
    const int members = static_cast<int>(ranks.size());
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = open_.try_emplace({name, ranks});
    if (is_new) entry->second.memory = private_memory(SharedArena::bytes_for(members, staging_bytes_));
    const SharedArena arena(entry->second.memory, members, staging_bytes_);
    if (is_new) arena.initialize();
    if (++entry->second.users == members) open_.erase(entry);
    return arena;
  }

 private:
  struct Open {
    std::shared_ptr<std::byte> memory;
    int users = 0;
  };

  int size_;
  CommDeadlines deadlines_;
  std::size_t staging_bytes_;
  mutable std::vector<std::atomic<int64_t>> last_looks_;  ///< of each rank
  std::shared_ptr<FailureNote> failure_ = std::make_shared<FailureNote>();
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, Open> open_;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  std::string transport() const override { return "threads"; }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    Membership membership = member_of(name, ranks, rank_, size());
    throw_if_set(hub_->failure(), rank_, creation_text(name));
    if (ranks.size() == 1) return single_communicator(std::move(membership), hub_->shared_failure());
    auto communicator = std::make_unique<SharedCommunicator>(std::move(membership), hub_->arena(name, ranks),
                                                             *hub_, hub_->deadlines().train_seconds);
    communicator->arrive(hub_->deadlines().init_seconds);
    return communicator;
  }

  void abort(const std::string& reason) override { hub_->fail(format("rank {}: {}", rank_, reason)); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<World>> thread_worlds(int size, CommDeadlines deadlines,
                                                  std::size_t staging_bytes) {
  const auto hub = std::make_shared<Hub>(size, deadlines, staging_bytes);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_unique<ThreadWorld>(hub, rank));
  return worlds;
}

}  // namespace stepforge
