// SPDX-License-Identifier: Apache-2.0
// A message engine within one process and without a network, so that message worlds can be tested under
// sanitizers.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "stepforge/comm/message_world.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {

class MemoryStore : public KeyStore {
 public:
  MemoryStore() : table_(std::make_shared<Table>()) {}

  void set(const std::string& key, const std::string& value) override { set_all({key}, value); }
  void set_all(const std::vector<std::string>& keys, const std::string& value) override {
    const std::lock_guard lock(table_->mutex);
    for (const std::string& key : keys) table_->values[key] = value;
    table_->changed.notify_all();
  }
  bool has(const std::string& key) override {
    const std::lock_guard lock(table_->mutex);
    return table_->values.contains(key);
  }
  std::string get(const std::string& key) override {
    const std::lock_guard lock(table_->mutex);
    return table_->values.at(key);
  }
  std::optional<std::string> wait(const std::string& key, double seconds) override {
    std::unique_lock lock(table_->mutex);
    const bool exists = table_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                                 [&] { return table_->values.contains(key); });
    return exists ? std::optional(table_->values[key]) : std::nullopt;
  }
  int64_t add(const std::string& key, int64_t amount) override {
    const std::lock_guard lock(table_->mutex);
    return table_->numbers[key] += amount;
  }
  std::unique_ptr<KeyStore> another_connection() override { return share(); }
  std::unique_ptr<MemoryStore> share() const { return std::make_unique<MemoryStore>(*this); }

  MemoryStore(const MemoryStore& other) : KeyStore(), table_(other.table_) {}
  MemoryStore& operator=(const MemoryStore&) = delete;

 private:
  struct Table {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;
    std::map<std::string, int64_t> numbers;
  };
  std::shared_ptr<Table> table_;
};

/// Delivers messages between threads.
class Switchboard {
 public:
  struct Message {
    std::span<std::byte> bytes;
    WaitResult state = WaitResult::timed_out;  ///< as long as it is not delivered
    bool is_interrupted = false;
    int64_t time = 0;  ///< when it was posted; once it is delivered, when that was done
  };
  using Line = std::tuple<std::string, int, int, Channel>;  ///< group, from, to

  std::shared_ptr<Message> post(const Line& line, std::span<std::byte> bytes, bool is_send, int64_t time) {
    const std::lock_guard lock(mutex_);
    auto message = std::make_shared<Message>(Message{.bytes = bytes, .time = time});
    const auto& [group, from, to, channel] = line;
    if (closed_.contains({group, from}) || closed_.contains({group, to})) {
      message->state = WaitResult::closed;
      return message;
    }
    auto& [sends, receives] = lines_[line];
    (is_send ? sends : receives).push_back(message);
    while (!sends.empty() && !receives.empty()) {
      std::ranges::copy(sends.front()->bytes, receives.front()->bytes.begin());
      sends.front()->state = receives.front()->state = WaitResult::done;
      // As with Gloo: a message leaves when its receiver's request has arrived.
      sends.front()->time = std::max(sends.front()->time, receives.front()->time + 1);
      receives.front()->time = sends.front()->time + 1;
      sends.pop_front();
      receives.pop_front();
    }
    changed_.notify_all();
    return message;
  }

  WaitResult wait(Message& message, double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [&] { return message.state != WaitResult::timed_out || message.is_interrupted; });
    if (message.state == WaitResult::timed_out && message.is_interrupted) {
      message.is_interrupted = false;
      return WaitResult::interrupted;
    }
    return message.state;
  }

  void interrupt(Message& message) {
    const std::lock_guard lock(mutex_);
    message.is_interrupted = true;
    changed_.notify_all();
  }

  /// Discards a message that no thread waits for.
  void drop(const std::shared_ptr<Message>& message) {
    const std::lock_guard lock(mutex_);
    for (auto& [line, queues] : lines_) {
      for (auto* queue : {&queues.first, &queues.second}) std::erase(*queue, message);
    }
  }

  void close(const std::string& group, int member) {
    const std::lock_guard lock(mutex_);
    closed_[{group, member}] = true;
    for (auto& [line, queues] : lines_) {
      const auto& [of_group, from, to, channel] = line;
      if (of_group != group || (from != member && to != member)) continue;
      for (auto* queue : {&queues.first, &queues.second}) {
        for (const auto& message : *queue) message->state = WaitResult::closed;
        queue->clear();
      }
    }
    changed_.notify_all();
  }

 private:
  using Queue = std::deque<std::shared_ptr<Message>>;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Line, std::pair<Queue, Queue>> lines_;  ///< sends and receives
  std::map<std::pair<std::string, int>, bool> closed_;
};

/// `clock` is advanced by what the rank's thread waits for, in times that a message takes; computing takes none.
class MemoryLinks : public MessageLinks {
 public:
  using Clock = std::shared_ptr<int64_t>;

  MemoryLinks(std::shared_ptr<Switchboard> board, std::string group, int member,
              Clock clock = std::make_shared<int64_t>(0))
      : board_(std::move(board)), group_(std::move(group)), member_(member), clock_(std::move(clock)) {}
  ~MemoryLinks() override { board_->close(group_, member_); }

  std::unique_ptr<PendingMessage> send(std::span<const std::byte> bytes, int member,
                                       Channel channel) override {
    const std::span<std::byte> writable{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return std::make_unique<Pending>(
        board_, clock_, board_->post({group_, member_, member, channel}, writable, true, *clock_));
  }
  std::unique_ptr<PendingMessage> receive(std::span<std::byte> bytes, int member, Channel channel) override {
    return std::make_unique<Pending>(board_, clock_,
                                     board_->post({group_, member, member_, channel}, bytes, false, *clock_));
  }

 private:
  class Pending : public PendingMessage {
   public:
    Pending(std::shared_ptr<Switchboard> board, Clock clock, std::shared_ptr<Switchboard::Message> message)
        : board_(std::move(board)), clock_(std::move(clock)), message_(std::move(message)) {}
    ~Pending() override { board_->drop(message_); }
    WaitResult wait(double seconds) override {
      const WaitResult result = board_->wait(*message_, seconds);
      if (result == WaitResult::done) *clock_ = std::max(*clock_, message_->time);
      return result;
    }
    void interrupt() override { board_->interrupt(*message_); }

   private:
    std::shared_ptr<Switchboard> board_;
    Clock clock_;
    std::shared_ptr<Switchboard::Message> message_;
  };

  std::shared_ptr<Switchboard> board_;
  std::string group_;
  int member_;
  Clock clock_;
};

/// Ranks as threads whose messages go through memory.
inline RankRunner as_messages() {
  return {"Messages", [](int size, const RankBody& body, CommDeadlines deadlines) {
            const MemoryStore store;
            const auto board = std::make_shared<Switchboard>();
            return run_rank_threads(size, [&](int rank) {
              MessageWorldOptions options;
              options.run_id = "messages";
              options.rank = rank;
              options.size = size;
              options.deadlines = deadlines;
              options.staging_bytes = 8 << 10;  // most sums need many rounds
              const auto world =
                  message_world(options, store.share(), [&](const std::string& key, int member, int) {
                    return std::make_unique<MemoryLinks>(board, key, member);
                  });
              return body(*world);
            });
          }};
}

}  // namespace stepforge::testing
