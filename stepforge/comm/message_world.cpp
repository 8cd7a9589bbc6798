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
#include "stepforge/comm/failure_log.h"
#include "stepforge/comm/failure_note.h"
#include "stepforge/comm/message_communicator.h"
#include "stepforge/comm/single_communicator.h"

namespace stepforge {

namespace {

/// The longest pause between two looks for other ranks.
constexpr std::chrono::milliseconds longest_pause{50};
/// How long a rank waits until its report of a failure comes back through the store.
constexpr double echo_seconds = 2;
/// How long rank 0 waits for the others to hear of a failure.
constexpr double linger_seconds = 1;
/// How long rank 0 waits for the others after a good end: one of them may have died silently.
constexpr double farewell_seconds = 30;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Looks for a key, less and less often, until `stop` returns true or throws; whether the key exists.
bool look_for(KeyStore& store, const std::string& key, const std::function<bool(double waited)>& stop) {
  const auto start = std::chrono::steady_clock::now();
  for (std::chrono::milliseconds pause{1}; !store.has(key); pause = std::min(pause * 2, longest_pause)) {
    if (stop(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count())) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

class MessageWorld : public World, private MessageWatch {
 public:
  MessageWorld(MessageWorldOptions options, std::unique_ptr<KeyStore> store, LinksFactory connect)
      : options_(std::move(options)),
        prefix_(format("stepforge/{}", content_hash(options_.run_id))),
        store_(std::move(store)),
        connect_(std::move(connect)) {
    std::vector<int> all(static_cast<std::size_t>(options_.size));
    std::iota(all.begin(), all.end(), 0);
    try {
      introduce();
      log_ = std::make_unique<FailureLog>(
          *store_, prefix_, options_.rank, options_.size, store_lost_text(),
          [this](const std::string& scope, const std::string& reason) { on_report(scope, reason); });
      meet("world", prefix_, all, *failure_);
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
      say_farewell();
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
    enter(key, {note, nullptr});
    try {
      meet(name, key, ranks, *note);
      auto links = connect_(key, membership.rank, static_cast<int>(ranks.size()));
      auto communicator =
          std::make_unique<MessageCommunicator>(std::move(membership), key, std::move(links), watch(), note,
                                                options_.deadlines.train_seconds, options_.staging_bytes);
      enter(key, {note, communicator.get()});
      return communicator;
    } catch (const PeerError&) {
      forget(key);
      throw;
    } catch (const Error& error) {
      forget(key);
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

  /// Registers this rank, and checks that rank 0 was started for the same world.
  void introduce() {
    const std::string here = format("process {} on {}", getpid(), host_name());
    if (store_->add(rank_key(options_.rank) + "/count", 1) != 1) {
      throw PeerError(format("rank {} of this run exists already ({}); this one is {}", options_.rank,
                             who(options_.rank), here));
    }
    store_->set(rank_key(options_.rank), here);
    const std::string size_key = prefix_ + "/size";
    if (options_.rank == 0) return store_->set(size_key, std::to_string(options_.size));
    const auto is_late = [&](double waited) { return waited >= options_.deadlines.init_seconds; };
    if (!look_for(*store_, size_key, is_late)) {
      throw PeerError(format("no answer within {} s: rank {} waits for rank 0 (not connected)",
                             options_.deadlines.init_seconds, options_.rank));
    }
    const std::string size_of_zero = store_->get(size_key);
    if (size_of_zero == std::to_string(options_.size)) return;
    throw PeerError(format("rank {} was started for {} ranks, rank 0 for {}", options_.rank, options_.size,
                           size_of_zero));
  }

  /// "process 71 on node-3"
  std::string who(int rank) const {
    try {
      return store_->has(rank_key(rank)) ? store_->get(rank_key(rank)) : "not connected";
    } catch (const Error&) {
      return "process unknown";
    }
  }

  std::string store_lost_text() const {
    if (options_.rank_zero_holds_store) return format("rank 0 ({}) is gone", who(0));
    return "the launcher's store cannot be reached any more";
  }

  /// Waits until all of `ranks` have called this with the same key.
  void meet(const std::string& name, const std::string& key, const std::vector<int>& ranks,
            FailureNote& note) {
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
    if (look_for(*store_, key + "/complete", is_late)) return;
    std::vector<std::string> missing;
    for (const int rank : ranks) {
      if (!store_->has(format("{}/there/{}", key, rank)))
        missing.push_back(format("rank {} (not connected)", rank));
    }
    report(key == prefix_ ? "" : key, note,
           format("no answer within {} s: rank {} waits in {} for {}", options_.deadlines.init_seconds,
                  options_.rank, creation_text(name), join(missing, ", ")));
    throw PeerError(*note.text());
  }

  void enter(const std::string& key, const Group& group) {
    const std::lock_guard lock(mutex_);
    groups_[key] = group;
  }
  void forget(const std::string& key) {
    const std::lock_guard lock(mutex_);
    groups_.erase(key);
  }

  /// Reports a failure and waits until it, or an earlier one, has come back as the note's text.
  void report(const std::string& scope, FailureNote& note, const std::string& reason) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(echo_seconds);
    if (log_->post(scope, reason)) {
      while (!note.is_set() && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    if (note.is_set()) return;
    has_failed_ = true;  // the others see that this rank's connections are closed
    spread(scope, reason);
    note.set(reason);
  }

  /// A failure that the store reports.
  void on_report(const std::string& scope, const std::string& reason) {
    has_failed_ = true;
    spread(scope, reason);
    // Rank 0 waits for this, unless it is gone.
    reached([&] { store_->add(prefix_ + "/heard", 1); });
  }

  /// Notes a failure and wakes the groups that it concerns.
  void spread(const std::string& scope, const std::string& reason) {
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

  MessageWatch& watch() { return *this; }
  const FailureNote& failure() const override { return *failure_; }

  void fail_group(const std::string& key, FailureNote& note, const std::string& reason) override {
    if (!note.is_set()) report(key, note, reason);
  }

  std::string explain_loss(const std::string& key, int global_rank) override {
    bool has_left = false;
    reached([&] { has_left = store_->has(format("{}/left/{}", key, global_rank)); });
    if (has_left) return format("rank {} has left the group", global_rank);
    return format("rank {} ({}) is gone", global_rank, who(global_rank));
  }

  void leave(const std::string& key) override {
    forget(key);
    // Without a store, other ranks cannot ask any more.
    reached([&] { store_->set(format("{}/left/{}", key, options_.rank), ""); });
  }

  /// Throws the failure because of which the store is gone, if that is known.
  [[noreturn]] void fail_without_store(const std::string& name, const Error& error) {
    for (int i = 0; i < 100 && !failure_->is_set(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw_if_set(*failure_, options_.rank, creation_text(name));
    throw PeerError(format("{} (rank {} stopped in {})", error.what(), options_.rank, creation_text(name)));
  }

  /// After a failure rank 0 keeps the store for a moment, so that the others learn of it.
  void linger() {
    if (options_.rank != 0 || !options_.rank_zero_holds_store) return;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(linger_seconds);
    reached([&] {
      while (std::chrono::steady_clock::now() < end && store_->add(prefix_ + "/heard", 0) < options_.size) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }

  /// After a good end rank 0 keeps the store until the others do not need it any more.
  void say_farewell() {
    if (std::uncaught_exceptions() > 0 || !options_.rank_zero_holds_store) return;
    const std::string all_left = prefix_ + "/farewell-of-all";
    const auto stop = [&](double waited) {
      return has_failed_ || waited >= std::min(farewell_seconds, options_.deadlines.train_seconds);
    };
    // If the store is gone, so are the ranks that could wait.
    reached([&] {
      if (options_.rank == 0) {
        look_for(*store_, all_left, stop);
      } else if (store_->add(prefix_ + "/farewell", 1) == options_.size - 1) {
        store_->set(all_left, "");
      }
    });
  }

  MessageWorldOptions options_;
  std::string prefix_;
  std::unique_ptr<KeyStore> store_;
  LinksFactory connect_;
  std::shared_ptr<FailureNote> failure_ = std::make_shared<FailureNote>();
  std::mutex mutex_;  ///< of groups_
  std::map<std::string, Group> groups_;
  std::atomic<bool> has_failed_ = false;  ///< the world or a group
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
