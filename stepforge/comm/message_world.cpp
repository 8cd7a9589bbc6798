// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/message_world.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/store_keys.h"
#include "stepforge/comm/failure_log.h"
#include "stepforge/comm/failure_note.h"
#include "stepforge/comm/message_communicator.h"
#include "stepforge/comm/single_communicator.h"

namespace stepforge {

namespace {

constexpr std::chrono::milliseconds kMaxPollInterval{50};
/// How long a rank waits until its report of a failure comes back through the store.
constexpr double kEchoSeconds = 2;
/// How long rank 0 keeps the store after a failure, so that the others learn of it.
constexpr double kLingerSeconds = 1;
/// How long rank 0 waits for the others after a success: one of them may have died silently.
constexpr double kShutdownSeconds = 30;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Polls for a key at growing intervals, until it exists (true) or `stop` returns true (false) or throws.
bool poll_for(KeyStore& store, const std::string& key, const std::function<bool(double waited)>& stop) {
  const auto start = std::chrono::steady_clock::now();
  for (std::chrono::milliseconds pause{1}; !store.has(key); pause = std::min(pause * 2, kMaxPollInterval)) {
    if (stop(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count())) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

class MessageWorld : public World, public GroupServices {
 public:
  MessageWorld(MessageWorldOptions options, std::unique_ptr<KeyStore> store, LinksFactory connect)
      : options_(std::move(options)),
        prefix_(store_prefix(options_.run_id)),
        store_(std::move(store)),
        connect_(std::move(connect)) {
    std::vector<int> all(static_cast<std::size_t>(options_.size));
    std::iota(all.begin(), all.end(), 0);
    try {
      register_rank();
      log_ = std::make_unique<FailureLog>(
          *store_, prefix_, options_.rank, options_.size, store_lost_text(),
          [this](const std::string& scope, const std::string& reason) { on_report(scope, reason); });
      rendezvous("world", prefix_, "", all, *failure_);
    } catch (const PeerError&) {
      linger();
      throw;
    } catch (const Error& error) {
      fail_without_store("world", error);
    }
  }

  ~MessageWorld() override {
    if (has_failed_) {
      linger();
    } else {
      wait_for_shutdown();
    }
    log_.reset();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string transport() const override { return options_.transport; }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    Membership membership = member_of(name, ranks, options_.rank, options_.size);
    throw_if_set(*failure_, options_.rank, creation_text(name));
    if (ranks.size() == 1) return single_communicator(std::move(membership), failure_);
    const std::string key = format("{}/{}", prefix_, content_hash(format("{} {}", name, join_ranks(ranks))));
    const auto note = std::make_shared<FailureNote>();
    register_group(key, {note, nullptr});
    try {
      rendezvous(name, key, key, ranks, *note);
      auto links = connect(name, key, membership, *note);
      // A member that left now would close connections on which a slower one still shakes hands.
      rendezvous(name, key + "/connected", key, ranks, *note);
      auto communicator =
          std::make_unique<MessageCommunicator>(std::move(membership), key, std::move(links), *this, note,
                                                options_.deadlines.train_seconds, options_.staging_bytes);
      register_group(key, {note, communicator.get()});
      return communicator;
    } catch (const PeerError&) {
      forget_group(key);
      throw;
    } catch (const Error& error) {
      forget_group(key);
      fail_without_store(name, error);
    }
  }

  void abort(const std::string& reason) override {
    if (!failure_->is_set()) report("", *failure_, format("rank {}: {}", options_.rank, reason));
  }

 private:
  struct Group {
    std::shared_ptr<FailureNote> note;
    MessageCommunicator* communicator = nullptr;
  };

  std::string rank_key(int rank) const { return format("{}/rank/{}", prefix_, rank); }
  static std::string join_ranks(const std::vector<int>& ranks) {
    std::string text;
    for (const int rank : ranks) text += format("{} ", rank);
    return text;
  }

  /// Registers this rank, and checks that rank 0 was started for the same number of ranks.
  void register_rank() {
    const std::string here = format("process {} on {}", getpid(), host_name());
    if (store_->add(rank_key(options_.rank) + "/count", 1) != 1) {
      throw PeerError(format("rank {} of this run exists already ({}); this one is {}", options_.rank,
                             process_text(options_.rank), here));
    }
    store_->set(rank_key(options_.rank), here);
    const std::string key = size_key(prefix_);
    if (options_.rank == 0) return store_->set(key, std::to_string(options_.size));
    const auto is_late = [&](double waited) { return waited >= options_.deadlines.init_seconds; };
    if (!poll_for(*store_, key, is_late)) {
      throw PeerError(format("no answer within {} s: rank {} waits for rank 0 (not connected)",
                             options_.deadlines.init_seconds, options_.rank));
    }
    const std::string size_of_zero = store_->get(key);
    if (size_of_zero == std::to_string(options_.size)) return;
    throw PeerError(format("rank {} was started for {} ranks, rank 0 for {}", options_.rank, options_.size,
                           size_of_zero));
  }

  /// "process 71 on node-3"
  std::string process_text(int rank) const {
    try {
      return store_->has(rank_key(rank)) ? store_->get(rank_key(rank)) : "not connected";
    } catch (const Error&) {
      return "process unknown";
    }
  }

  std::string store_lost_text() const {
    if (options_.rank_zero_holds_store) return format("rank 0 ({}) is gone", process_text(0));
    return "the launcher's store is no longer reachable";
  }

  /// Connects this rank with the other members. A failure fails the group, so that no member waits for this rank.
  std::unique_ptr<MessageLinks> connect(const std::string& name, const std::string& key,
                                        const Membership& membership, FailureNote& note) {
    try {
      return connect_(key, membership.rank, static_cast<int>(membership.ranks.size()));
    } catch (const Error& error) {
      wait_for_failure();
      throw_if_set(*failure_, options_.rank, creation_text(name));
      report(key, note, format("rank {} in {}: {}", options_.rank, creation_text(name), error.what()));
      throw PeerError(*note.text());
    }
  }

  /// Waits until all of `ranks` have called this with the same key. A rank that is late is a failure of
  /// `scope`, whose note is `note`.
  void rendezvous(const std::string& name, const std::string& key, const std::string& scope,
                  const std::vector<int>& ranks, FailureNote& note) {
    const auto size = static_cast<int64_t>(ranks.size());
    store_->set(format("{}/there/{}", key, options_.rank), "");
    const int64_t count = store_->add(key + "/count", 1);
    if (count > size) throw Error(format("group \"{}\" of these ranks exists already", name));
    if (count == size) store_->set(key + "/complete", "");
    const auto is_late = [&](double waited) {
      for (const FailureNote* failure : {failure_.get(), &note}) {
        throw_if_set(*failure, options_.rank, creation_text(name));
      }
      return waited >= options_.deadlines.init_seconds;
    };
    if (poll_for(*store_, key + "/complete", is_late)) return;
    report(scope, note,
           format("no answer within {} s: rank {} waits in {} for {}", options_.deadlines.init_seconds,
                  options_.rank, creation_text(name), missing_text(key, ranks)));
    throw PeerError(*note.text());
  }

  /// The ranks that have not called rendezvous() with this key.
  std::string missing_text(const std::string& key, const std::vector<int>& ranks) {
    const int64_t there = store_->add(key + "/count", 0);
    std::vector<std::string> missing;
    for (const int rank : ranks) {  // one query of the store for each, so only those that are named
      if (missing.size() == kMostNamedRanks) break;
      if (!store_->has(format("{}/there/{}", key, rank))) {
        missing.push_back(format("rank {} (not connected)", rank));
      }
    }
    return named_ranks_text(missing, std::ssize(ranks) - there);
  }

  void register_group(const std::string& key, const Group& group) {
    const std::lock_guard lock(mutex_);
    groups_[key] = group;
  }
  void forget_group(const std::string& key) {
    const std::lock_guard lock(mutex_);
    groups_.erase(key);
  }

  /// Reports a failure and waits until the failure log has set `note`, to this or to an earlier failure.
  void report(const std::string& scope, FailureNote& note, const std::string& reason) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kEchoSeconds);
    if (log_->post(scope, reason)) {
      while (!note.is_set() && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    if (note.is_set()) return;
    has_failed_ = true;  // the others notice that this rank's connections are closed
    apply_failure(scope, reason);
    note.set(reason);
  }

  /// Called by the failure log.
  void on_report(const std::string& scope, const std::string& reason) {
    has_failed_ = true;
    apply_failure(scope, reason);
    // Rank 0 waits for this in linger(), unless its process has ended.
    try_store([&] { store_->add(prefix_ + "/heard", 1); });
  }

  /// Sets the notes of the groups that the failure concerns, and wakes their ranks.
  void apply_failure(const std::string& scope, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (scope.empty()) {
      const bool is_first = !failure_->is_set();
      failure_->set(reason);
      for (const auto& [key, group] : groups_) interrupt(group);
      if (is_first && options_.on_failure) options_.on_failure(reason);
      return;
    }
    const auto found = groups_.find(scope);
    if (found == groups_.end()) return;
    found->second.note->set(reason);
    interrupt(found->second);
  }
  static void interrupt(const Group& group) {
    if (group.communicator != nullptr) group.communicator->interrupt();
  }

  const FailureNote& failure() const override { return *failure_; }

  void fail_group(const std::string& key, FailureNote& note, const std::string& reason) override {
    if (!note.is_set()) report(key, note, reason);
  }

  std::string explain_loss(const std::string& key, int global_rank) override {
    bool has_left = false;
    try_store([&] { has_left = store_->has(format("{}/left/{}", key, global_rank)); });
    if (has_left) return format("rank {} has left the group", global_rank);
    return format("rank {} ({}) is gone", global_rank, process_text(global_rank));
  }

  void leave(const std::string& key) override {
    forget_group(key);
    // Without a store, no rank can ask for this.
    try_store([&] { store_->set(format("{}/left/{}", key, options_.rank), ""); });
  }

  /// Waits a moment for a failure of the world that explains an error of this rank.
  void wait_for_failure() const {
    for (int i = 0; i < 100 && !failure_->is_set(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  /// Throws the failure that ended the store's process if it becomes known soon, otherwise `error`.
  [[noreturn]] void fail_without_store(const std::string& name, const Error& error) {
    wait_for_failure();
    throw_if_set(*failure_, options_.rank, creation_text(name));
    throw PeerError(format("{} (rank {} stopped in {})", error.what(), options_.rank, creation_text(name)));
  }

  /// After a failure rank 0 keeps the store for a moment, so that the others learn of it.
  void linger() {
    if (options_.rank != 0 || !options_.rank_zero_holds_store) return;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kLingerSeconds);
    try_store([&] {
      while (std::chrono::steady_clock::now() < end && store_->add(prefix_ + "/heard", 0) < options_.size) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }

  /// After a success rank 0 keeps the store until no other rank needs it.
  void wait_for_shutdown() {
    if (std::uncaught_exceptions() > 0 || !options_.rank_zero_holds_store) return;
    const std::string all_left = all_finished_key(prefix_);
    const auto stop = [&](double waited) {
      return has_failed_ || waited >= std::min(kShutdownSeconds, options_.deadlines.train_seconds);
    };
    // If the store is not reachable, rank 0 has ended, and no rank waits.
    try_store([&] {
      if (options_.rank == 0) {
        poll_for(*store_, all_left, stop);
      } else if (store_->add(prefix_ + "/finished", 1) == options_.size - 1) {
        store_->set(all_left, "");
      }
    });
  }

  MessageWorldOptions options_;
  std::string prefix_;
  std::unique_ptr<KeyStore> store_;
  LinksFactory connect_;
  std::shared_ptr<FailureNote> failure_ = std::make_shared<FailureNote>();
  std::mutex mutex_;  ///< guards groups_
  std::map<std::string, Group> groups_;
  std::atomic<bool> has_failed_ = false;  ///< the world or a group of it
  std::unique_ptr<FailureLog> log_;
};

}  // namespace

std::unique_ptr<World> message_world(MessageWorldOptions options, std::unique_ptr<KeyStore> store,
                                     LinksFactory connect) {
  if (options.rank < 0 || options.rank >= options.size) {
    throw Error(format("rank {} is outside a world of {} ranks", options.rank, options.size));
  }
  if (options.size == 1) return single_world();
  return std::make_unique<MessageWorld>(std::move(options), std::move(store), std::move(connect));
}

}  // namespace stepforge
