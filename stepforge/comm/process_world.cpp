// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of one host. The world is an arena without staging buffers, in a file named after the
// run: it shows which ranks have joined and which are still alive, and holds a random nonce that is part of
// the names of its groups' files.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include <unistd.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/shared_communicator.h"
#include "stepforge/comm/shared_file.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/comm/single_communicator.h"

namespace stepforge {

namespace {

/// Waits between attempts, at growing intervals, until a deadline.
class Polling {
 public:
  explicit Polling(double seconds)
      : end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  /// False once the deadline has passed.
  bool wait() {
    if (Clock::now() >= end_) return false;
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::milliseconds(20));
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
  std::chrono::milliseconds pause_{1};
};

uint64_t random_nonce() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

class ProcessWorld : public LocalWorld, public WorldStatus {
 public:
  ProcessWorld(const std::string& run_id, const LocalRanks& host, CommDeadlines deadlines,
               std::size_t staging_bytes)
      : host_(host),
        size_(static_cast<int>(host.ranks.size())),
        local_rank_(member_of("host", host.ranks, host.rank, host.world_size).rank),
        deadlines_(deadlines),
        staging_bytes_(staging_bytes),
        name_(content_hash(run_id)),
        file_(local_rank_ == 0 ? create_world(run_id) : join_world(run_id)),
        arena_(file_->memory(), size_, 0) {
    arena_.slot(local_rank_).process.store(getpid());
    world_group_ = std::make_unique<SharedCommunicator>(Membership{"world", host_.ranks, local_rank_}, arena_,
                                                        *this, deadlines_.init_seconds);
    world_group_->arrive(deadlines_.init_seconds);
    file_->unpublish();
  }

  int rank() const override { return host_.rank; }
  int size() const override { return host_.world_size; }
  std::string transport() const override { return "shared memory"; }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    Membership membership = member_of(name, ranks, rank(), size());
    throw_if_set(failure(), rank(), creation_text(name));
    if (ranks.size() == 1) return single_communicator(std::move(membership), shared_failure());
    for (const int rank : ranks) local_rank_of(rank);
    std::string key = name;
    for (const int rank : ranks) key += format(" {}", rank);
    const std::string file_name = format("{}-{:016x}-{}", name_, arena_.header().nonce, content_hash(key));
    const auto file =
        membership.rank == 0 ? create_group(membership, file_name) : join_group(membership, file_name);
    const SharedArena arena(file->memory(), static_cast<int>(ranks.size()), staging_bytes_);
    arena.slot(membership.rank).process.store(getpid());
    auto communicator =
        std::make_unique<SharedCommunicator>(std::move(membership), arena, *this, deadlines_.train_seconds);
    communicator->arrive(deadlines_.init_seconds);
    return communicator;
  }

  void abort(const std::string& reason) override { fail(format("rank {}: {}", rank(), reason)); }
  void fail(const std::string& reason) override { arena_.fail(reason); }

 private:
  const FailureNote& failure() const override { return arena_.header().failure; }
  bool is_alive(int global_rank) const override {
    const int local_rank = local_rank_of(global_rank);
    const bool has_joined = arena_.slot(local_rank).process.load() != 0;
    return local_rank == local_rank_ || !has_joined || file_->is_locked_by_another(local_rank);
  }

  std::atomic<int64_t>& last_look(int global_rank) const override {
    return arena_.slot(local_rank_of(global_rank)).last_look;
  }

  /// A rank's index among those of the host. Throws Error if it is not on the host.
  int local_rank_of(int global_rank) const {
    const auto found = std::find(host_.ranks.begin(), host_.ranks.end(), global_rank);
    if (found == host_.ranks.end()) throw Error(format("rank {} is not on this host", global_rank));
    return static_cast<int>(found - host_.ranks.begin());
  }

  /// The note in the world's memory; the pointer keeps the memory mapped.
  std::shared_ptr<const FailureNote> shared_failure() const {
    return {file_->memory(), &arena_.header().failure};
  }

  std::unique_ptr<SharedFile> create_world(const std::string& run_id) const {
    SharedFile::remove_dead();
    auto file = SharedFile::create(SharedArena::bytes_for(size_, 0));
    SharedArena(file->memory(), size_, 0).initialize(random_nonce());
    for (Polling polling(deadlines_.init_seconds); !file->publish(name_);) {
      if (!polling.wait()) {
        throw PeerError(
            format("rank {} of run \"{}\" exists already: another job with the same run id waits for its "
                   "ranks; end it, or give this one a different id",
                   host_.ranks[0], run_id));
      }
      SharedFile::remove_dead();
    }
    return file;
  }

  std::unique_ptr<SharedFile> join_world(const std::string& run_id) const {
    for (Polling polling(deadlines_.init_seconds);;) {
      auto file = SharedFile::open(name_, sizeof(SharedArenaHeader));
      const bool is_open = file != nullptr && file->is_locked_by_another(0);
      if (is_open) {
        const int64_t size = reinterpret_cast<const SharedArenaHeader*>(file->memory().get())->size;
        if (size != size_) {
          throw PeerError(format("rank {} of run \"{}\" was started for {} ranks, rank 0 for {}", rank(),
                                 run_id, size_, size));
        }
        // A process of an earlier attempt that has not ended yet can still hold the lock.
        if (file->lock(local_rank_) && file->is_locked_by_another(0) && !file->is_removed()) return file;
      }
      if (!polling.wait()) {
        throw PeerError(format("rank {} of run \"{}\" {} within {} s", rank(), run_id,
                               is_open ? "exists already; the other process did not end"
                                       : format("found no rank {}", host_.ranks[0]),
                               deadlines_.init_seconds));
      }
    }
  }

  std::unique_ptr<SharedFile> create_group(const Membership& group, const std::string& file_name) const {
    const int members = static_cast<int>(group.ranks.size());
    auto file = SharedFile::create(SharedArena::bytes_for(members, staging_bytes_));
    SharedArena(file->memory(), members, staging_bytes_).initialize();
    if (file->publish(file_name)) return file;
    throw Error(format("group \"{}\" of these ranks is being created already", group.name));
  }

  std::unique_ptr<SharedFile> join_group(const Membership& group, const std::string& file_name) const {
    const std::size_t bytes = SharedArena::bytes_for(static_cast<int>(group.ranks.size()), staging_bytes_);
    const int first = group.ranks[0];
    for (Polling polling(deadlines_.init_seconds);;) {
      throw_if_set(failure(), rank(), creation_text(group.name));
      if (auto file = SharedFile::open(file_name, bytes)) return file;
      if (!is_alive(first)) {
        throw_if_set(failure(), rank(), creation_text(group.name));  // it may have said why before it ended
        throw PeerError(format("rank {} (process {}) is gone; rank {} waited for it in {}", first,
                               arena_.slot(local_rank_of(first)).process.load(), rank(),
                               creation_text(group.name)));
      }
      if (!polling.wait()) {
        throw PeerError(format("no answer within {} s: rank {} waits in {} for rank {}",
                               deadlines_.init_seconds, rank(), creation_text(group.name), first));
      }
    }
  }

  LocalRanks host_;
  int size_;        ///< number of ranks on this host
  int local_rank_;  ///< this rank's index among them
  CommDeadlines deadlines_;
  std::size_t staging_bytes_;
  std::string name_;                  ///< of the world's file; the names of its groups' files begin with it
  std::unique_ptr<SharedFile> file_;  ///< holds this rank's lock
  SharedArena arena_;
  std::unique_ptr<SharedCommunicator> world_group_;
};

}  // namespace

std::unique_ptr<World> process_world(const std::string& run_id, int rank, int size, CommDeadlines deadlines,
                                     std::size_t staging_bytes) {
  if (rank < 0 || rank >= size) throw Error(format("rank {} is outside a world of {} ranks", rank, size));
  if (size == 1) return single_world();
  LocalRanks all{std::vector<int>(static_cast<std::size_t>(size)), rank, size};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return local_world(run_id, all, deadlines, staging_bytes);
}

std::unique_ptr<LocalWorld> local_world(const std::string& run_id, const LocalRanks& host,
                                        CommDeadlines deadlines, std::size_t staging_bytes) {
  return std::make_unique<ProcessWorld>(run_id, host, deadlines, staging_bytes);
}

}  // namespace stepforge
