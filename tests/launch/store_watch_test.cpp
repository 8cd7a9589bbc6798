// SPDX-License-Identifier: Apache-2.0
// The launcher's watch of a job, with a store that the test plays. Against a real one: tests/app/hosts_test.cpp.
#include "stepforge/launch/store_watch.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "stepforge/base/format.h"
#include "stepforge/base/store_keys.h"
#include "tests/launch/listener.h"

namespace stepforge::testing {
namespace {

constexpr int kMinute = 60000;

/// The store's side of the watch's connection.
class PlayedStore {
 public:
  explicit PlayedStore(const Listener& listener) {
    pollfd connecting{listener.descriptor(), POLLIN, 0};
    EXPECT_EQ(poll(&connecting, 1, kMinute), 1);
    socket_ = Descriptor(accept(listener.descriptor(), nullptr, nullptr));
  }

  /// Waits for the question: its first byte, and the key that it ends with.
  void expect(char kind, const std::string& key) { expect(std::string(1, kind) + counted(key)); }
  void expect_greeting() { expect(std::string("\0\xce\xf7\x85\x3c", 5)); }
  void expect_ping() { expect("\x0d\x02\x02\x02\x02"); }
  void answer(const std::string& bytes) const {
    EXPECT_EQ(send(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void answer_ping() const { answer("\x02\x02\x02\x02"); }
  void close() { socket_ = Descriptor(); }
  /// Until the watch closes the connection.
  void wait_for_end() {
    while (!received(1).empty()) {
    }
  }

 private:
  static std::string number(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }
  static std::string counted(const std::string& key) {
    return number(1) + number(key.size() + 1) + "/" + key;
  }
  std::string received(std::size_t bytes) const {
    pollfd readable{socket_.number(), POLLIN, 0};
    EXPECT_EQ(poll(&readable, 1, kMinute), 1);
    std::string text(bytes, '\0');
    const ssize_t count = recv(socket_.number(), text.data(), bytes, MSG_WAITALL);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
    return text;
  }
  void expect(const std::string& bytes) { EXPECT_EQ(received(bytes.size()), bytes); }

  Descriptor socket_;
};

class WatchedJob : public ::testing::Test {
 protected:
  explicit WatchedJob(double silent_seconds = 60)
      : watch_({{"127.0.0.1", listener_.port()}, "run", 0.01, silent_seconds}), store_(listener_) {}

  /// The watch asks whether the store is the job's, and whether it is there.
  void expect_first_question() {
    store_.expect_greeting();
    store_.expect('\x06', size_key(store_prefix("run")));
    store_.expect_ping();
  }
  /// The store says that it is the job's, and hears what the watch then asks.
  void begin() {
    expect_first_question();
    store_.answer(std::string(1, '\0'));
    store_.expect('\x06', all_finished_key(store_prefix("run")));
    store_.expect_ping();
  }
  bool has_ended() const {
    pollfd ended{watch_.descriptor(), POLLIN, 0};
    return poll(&ended, 1, kMinute) == 1;
  }
  std::string address() const { return format("rank 0's store at 127.0.0.1:{}", listener_.port()); }

  Listener listener_;
  StoreWatch watch_;
  PlayedStore store_;
};

class SilentJob : public WatchedJob {
 protected:
  SilentJob() : WatchedJob(0.5) {}
};

TEST_F(WatchedJob, EndsElsewhereIfItsStoreCloses) {
  begin();
  store_.answer_ping();
  store_.expect_ping();
  EXPECT_EQ(watch_.reason(), "");
  store_.close();
  EXPECT_TRUE(has_ended());
  EXPECT_EQ(watch_.reason(), address() + " is closed");
}

TEST_F(SilentJob, EndsElsewhereIfItsStoreNoLongerAnswers) {
  begin();
  EXPECT_TRUE(has_ended());
  EXPECT_EQ(watch_.reason(), address() + " has not answered for 0.5 s");
}

TEST_F(WatchedJob, IsOverOnceAllRanksHaveFinishedAndTheStoreMayClose) {
  begin();
  store_.answer(std::string(1, '\0'));
  store_.wait_for_end();
  store_.close();
  EXPECT_EQ(watch_.reason(), "");
}

TEST_F(WatchedJob, IsKnownByALateAnswerToo) {
  expect_first_question();
  pollfd none{-1, POLLIN, 0};
  poll(&none, 1, 100);  // ten times as long as the watch waits between two questions
  store_.answer_ping();
  store_.expect_ping();  // over the same connection
  store_.answer(std::string(1, '\0'));
  store_.expect('\x06', all_finished_key(store_prefix("run")));
}

TEST_F(WatchedJob, IsAnotherIfTheStoreDoesNotKnowItAndMayEndAsItLikes) {
  expect_first_question();
  store_.answer_ping();
  store_.expect_ping();  // rank 0 may come yet
  store_.close();
  PlayedStore next(listener_);
  next.expect_greeting();
  EXPECT_EQ(watch_.reason(), "");
}

}  // namespace
}  // namespace stepforge::testing
