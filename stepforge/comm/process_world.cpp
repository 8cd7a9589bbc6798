// Ranks as processes of one host. The world is a arena without staging buffers in a file named by the run;
// it tells who is there, who still lives, and a nonce that no earlier run had, from which groups name their
// files.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <unistd.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/group_rules.h"
#include "stepforge/comm/shared_communicator.h"
#include "stepforge/comm/shared_file.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/comm/single_communicator.h"

namespace stepforge {

namespace {

/// Waits between looks, longer and longer, until a moment in the future.
class Polling {
 public:
  explicit Polling(double seconds)
      : end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  /// False once the time is over.
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

/// A name in /dev/shm that is removed at the end of the scope.
class NameGuard {
 public:
  explicit NameGuard(std::string name) : name_(std::move(name)) {}
  ~NameGuard() { SharedFile::remove(name_); }
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;

 private:
  std::string name_;
};

uint64_t random_nonce() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

class ProcessWorld : public LocalWorld, private WorldWatch {
 public:
  ProcessWorld(const std::string& run_id, const LocalRanks& host, CommDeadlines deadlines,
               std::size_t staging_bytes)
      : host_(host),
        size_(static_cast<int>(host.ranks.size())),
        number_(member_number("host", host.ranks, host.rank, host.world_size)),
        deadlines_(deadlines),
        staging_bytes_(staging_bytes) {
    const std::string name = format("/stepforge-{}-{}", getuid(), content_hash(run_id));
    if (number_ != 0) {
      file_ = join_world(name, run_id);
      meet();
      return;
    }
    file_ = create_world(name, run_id);
    const NameGuard guard(name);
    meet();
  }

  int rank() const override { return host_.rank; }
  int size() const override { return host_.world_size; }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    const int member = member_number(name, ranks, rank(), size());
    throw_if_set(failure(), rank(), making_text(name));
    if (ranks.size() == 1) return single_communicator(rank(), shared_failure());
    for (const int rank : ranks) number_of(rank);
    std::string key = name;
    for (const int rank : ranks) key += format(" {}", rank);
    const std::string file_name =
        format("/stepforge-{}-{:016x}-{}", getuid(), arena_->header().nonce, content_hash(key));
    if (member != 0) return arrived(name, ranks, member, join_group(name, ranks, file_name));
    const SharedArena arena = create_group(name, ranks, file_name);
    const NameGuard guard(file_name);
    return arrived(name, ranks, member, arena);
  }

  void abort(const std::string& reason) override { fail(format("rank {}: {}", rank(), reason)); }
  void fail(const std::string& reason) override { arena_->fail(reason); }

 private:
  const WorldWatch& watch() const { return *this; }
  const FailureNote& failure() const override { return arena_->header().failure; }
  bool is_alive(int global_rank) const override {
    const int number = number_of(global_rank);
    const bool has_come = arena_->slot(number).process.load() != 0;
    return number == number_ || !has_come || file_->is_locked_by_another(number);
  }

  /// A rank's number among those of the host. Throws Error if it is none of them.
  int number_of(int global_rank) const {
    const auto found = std::find(host_.ranks.begin(), host_.ranks.end(), global_rank);
    if (found == host_.ranks.end()) throw Error(format("rank {} is not on this host", global_rank));
    return static_cast<int>(found - host_.ranks.begin());
  }

  /// The note in the world's memory, which it keeps.
  std::shared_ptr<const FailureNote> shared_failure() const {
    return {file_->memory(), &arena_->header().failure};
  }

  std::unique_ptr<SharedFile> create_world(const std::string& name, const std::string& run_id) {
    Polling polling(deadlines_.init_seconds);
    for (;;) {
      if (auto file = SharedFile::create(name, SharedArena::bytes_for(size_, 0))) {
        file->lock(0);
        arena_.emplace(file->memory(), size_, 0);
        arena_->initialize(random_nonce());
        return file;
      }
      const auto other = SharedFile::open(name, sizeof(SharedArenaHeader));
      if (other == nullptr || !other->is_locked_by_another(0)) {
        SharedFile::remove(name);  // left by a run that has ended
      } else if (!polling.wait()) {
        throw PeerError(
            format("rank {} of run \"{}\" is there already: another job of the same run id waits for "
                   "its ranks; end it, or give another id",
                   host_.ranks[0], run_id));
      }
    }
  }

  std::unique_ptr<SharedFile> join_world(const std::string& name, const std::string& run_id) {
    Polling polling(deadlines_.init_seconds);
    for (;;) {
      const bool is_open = is_world_open(name, run_id);
      if (is_open) {
        auto file = SharedFile::open(name, SharedArena::bytes_for(size_, 0));
        // The lock can be held by an earlier attempt's process that has not ended yet.
        if (file != nullptr && file->lock(number_) && file->is_locked_by_another(0) && !file->is_removed()) {
          arena_.emplace(file->memory(), size_, 0);
          return file;
        }
      }
      if (!polling.wait()) {
        throw PeerError(format("rank {} of run \"{}\" {} within {} s", rank(), run_id,
                               is_open ? "is there already; its place did not become free"
                                       : format("found no rank {}", host_.ranks[0]),
                               deadlines_.init_seconds));
      }
    }
  }

  /// Whether a living rank 0 has set up the file. Throws PeerError if it did for another number of ranks.
  bool is_world_open(const std::string& name, const std::string& run_id) const {
    const auto file = SharedFile::open(name, sizeof(SharedArenaHeader));
    if (file == nullptr || !file->is_locked_by_another(0)) return false;
    const auto& header = *reinterpret_cast<const SharedArenaHeader*>(file->memory().get());
    if (header.ready.load(std::memory_order_acquire) != SharedArena::ready_mark) return false;
    if (header.size != size_) {
      throw PeerError(format("rank {} of run \"{}\" was started for {} ranks, rank 0 for {}", rank(), run_id,
                             size_, header.size));
    }
    return true;
  }

  /// Waits until all ranks have joined.
  void meet() {
    arena_->slot(number_).process.store(getpid());
    meeting_ = std::make_unique<SharedCommunicator>("world", host_.ranks, number_, *arena_, watch(),
                                                    deadlines_.init_seconds);
    meeting_->arrive(deadlines_.init_seconds);
  }

  SharedArena create_group(const std::string& name, const std::vector<int>& ranks,
                           const std::string& file_name) {
    const int members = static_cast<int>(ranks.size());
    const auto file = SharedFile::create(file_name, SharedArena::bytes_for(members, staging_bytes_));
    if (file == nullptr) throw Error(format("group \"{}\" of these ranks is being made already", name));
    SharedArena arena(file->memory(), members, staging_bytes_);
    arena.initialize(arena_->header().nonce);
    return arena;
  }

  SharedArena join_group(const std::string& name, const std::vector<int>& ranks,
                         const std::string& file_name) {
    const int members = static_cast<int>(ranks.size());
    Polling polling(deadlines_.init_seconds);
    for (;;) {
      throw_if_set(failure(), rank(), making_text(name));
      if (const auto file = SharedFile::open(file_name, SharedArena::bytes_for(members, staging_bytes_))) {
        const SharedArena arena(file->memory(), members, staging_bytes_);
        if (arena.header().ready.load(std::memory_order_acquire) == SharedArena::ready_mark) return arena;
      }
      if (!is_alive(ranks[0])) {
        throw PeerError(format("rank {} (process {}) is gone; rank {} waited for it in {}", ranks[0],
                               arena_->slot(number_of(ranks[0])).process.load(), rank(), making_text(name)));
      }
      if (!polling.wait()) {
        throw PeerError(format("no answer within {} s: rank {} waits in {} for rank {}",
                               deadlines_.init_seconds, rank(), making_text(name), ranks[0]));
      }
    }
  }

  std::unique_ptr<Communicator> arrived(const std::string& name, const std::vector<int>& ranks, int member,
                                        const SharedArena& arena) {
    arena.slot(member).process.store(getpid());
    auto communicator =
        std::make_unique<SharedCommunicator>(name, ranks, member, arena, watch(), deadlines_.train_seconds);
    communicator->arrive(deadlines_.init_seconds);
    return communicator;
  }

  LocalRanks host_;
  int size_;    ///< ranks on this host
  int number_;  ///< this one's among them
  CommDeadlines deadlines_;
  std::size_t staging_bytes_;
  std::unique_ptr<SharedFile> file_;  ///< holds this rank's lock
  std::optional<SharedArena> arena_;
  std::unique_ptr<SharedCommunicator> meeting_;
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
