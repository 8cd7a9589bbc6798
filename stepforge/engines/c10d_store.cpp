// SPDX-License-Identifier: Apache-2.0
#include "stepforge/engines/c10d_store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "stepforge/base/format.h"
#include "stepforge/comm/communicator.h"
#include "stepforge/engines/c10d_text.h"

namespace stepforge {

namespace {

// The deadline of a call: c10d itself would wait forever if the store's host is gone or its process is
// stopped. It is train_timeout within these bounds: a busy host answers late, and the ranks wait for this too.
constexpr double kLeastAnswerSeconds = 5;
constexpr double kMostAnswerSeconds = 20;

/// Turns off c10d's log, which prints a call stack for each lost connection: our own messages have one line.
void silence_c10d_log() {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
}

/// State that the connections to one store share: if the store does not answer over one of them, none waits any longer.
class StoreState {
 public:
  explicit StoreState(double answer_seconds) : answer_seconds_(answer_seconds) {}

  double answer_seconds() const { return answer_seconds_; }
  /// Waits until `condition` is true (true), the store is lost, or `seconds` have passed, after which it is lost too.
  bool wait(double seconds, const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, milliseconds(seconds), [&] { return is_lost_ || condition(); });
    if (condition()) return true;
    is_lost_ = true;
    changed_.notify_all();
    return false;
  }
  bool is_lost() {
    const std::lock_guard lock(mutex_);
    return is_lost_;
  }
  /// A condition may have changed.
  void notify() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  double answer_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_lost_ = false;
};

class Store : public C10dStore {
 public:
  Store(c10::intrusive_ptr<c10d::Store> inner, std::shared_ptr<StoreState> state)
      : inner_(std::move(inner)), state_(std::move(state)) {}

  c10d::Store& store() const override { return *inner_; }
  std::unique_ptr<C10dStore> share() const override { return std::make_unique<Store>(inner_, state_); }

  void set(const std::string& key, const std::string& value) override {
    ask([=](c10d::Store& store) { store.set(key, value); });
  }
  void set_all(const std::vector<std::string>& keys, const std::string& value) override {
    const std::vector<uint8_t> bytes(value.begin(), value.end());
    ask([=](c10d::Store& store) {
      if (store.hasExtendedApi()) return store.multiSet(keys, {keys.size(), bytes});
      for (const std::string& key : keys) store.set(key, bytes);
    });
  }
  bool has(const std::string& key) override {
    return ask([=](c10d::Store& store) { return store.check({key}); });
  }
  std::string get(const std::string& key) override {
    return ask([=](c10d::Store& store) { return store.get_to_str(key); });
  }
  std::optional<std::string> wait(const std::string& key, double seconds) override {
    const auto call = [=](c10d::Store& store) -> std::optional<std::string> {
      try {
        store.wait({key}, milliseconds(seconds));
      } catch (const c10::DistStoreError&) {
        if (store.check({key})) return store.get_to_str(key);
        return std::nullopt;
      }
      return store.get_to_str(key);
    };
    return ask(call, seconds + state_->answer_seconds());
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return ask([=](c10d::Store& store) { return store.add(key, amount); });
  }
  std::unique_ptr<KeyStore> another_connection() override {
    return std::make_unique<Store>(ask([](c10d::Store& store) { return store.clone(); }), state_);
  }

 private:
  [[noreturn]] static void fail(const std::string& reason) {
    throw Error(format("rendezvous store: {}", reason));
  }

  /// Returns the result of `call`. Throws Error for c10d's exceptions and if there is no answer in time. A
  /// call that hangs is left to its thread, and its connection is not used any more.
  template <typename Call>
  std::invoke_result_t<Call, c10d::Store&> ask(Call call) {
    return ask(std::move(call), state_->answer_seconds());
  }
  template <typename Call>
  std::invoke_result_t<Call, c10d::Store&> ask(Call call, double seconds) {
    if (state_->is_lost()) fail("it does not answer");
    using Answer = std::invoke_result_t<Call, c10d::Store&>;
    auto task = std::make_shared<std::packaged_task<Answer()>>(
        [inner = inner_, call = std::move(call)] { return call(*inner); });
    std::future<Answer> answer = task->get_future();
    std::thread([task = std::move(task), state = state_] {
      (*task)();
      state->notify();
    }).detach();
    const auto has_answer = [&] {
      return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    if (!state_->wait(seconds, has_answer)) fail(format("no answer within {} s", seconds));
    try {
      return answer.get();
    } catch (const std::exception& failure) {
      fail(first_line(failure.what()));
    }
  }

  c10::intrusive_ptr<c10d::Store> inner_;
  std::shared_ptr<StoreState> state_;
};

}  // namespace

std::unique_ptr<C10dStore> tcp_store(const TcpAddress& address, bool is_server, CommDeadlines deadlines,
                                     std::optional<int> listener) {
  silence_c10d_log();
  const double seconds = deadlines.init_seconds;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = milliseconds(seconds);
  options.masterListenFd = listener;
  // c10d has no deadline for a listener that accepts and does not answer. Such an attempt is left to its
  // thread.
  std::packaged_task<c10::intrusive_ptr<c10d::Store>()> connect(
      [host = address.host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  auto store = connect.get_future();
  std::thread(std::move(connect)).detach();
  if (store.wait_for(milliseconds(seconds) + std::chrono::seconds(1)) != std::future_status::ready) {
    throw PeerError(
        format("{} does not answer as rank 0's store within {} s: another program may be listening "
               "there; set MASTER_PORT to another port on all ranks",
               address.text(), seconds));
  }
  try {
    return std::make_unique<Store>(
        store.get(), std::make_shared<StoreState>(
                         std::clamp(deadlines.train_seconds, kLeastAnswerSeconds, kMostAnswerSeconds)));
  } catch (const std::exception& failure) {
    const std::string reason = first_line(failure.what());
    if (reason.find("EADDRINUSE") != std::string::npos ||
        reason.find("address already in use") != std::string::npos) {
      throw UsageError(
          format("port {} is in use on this host: set MASTER_PORT to another port on all ranks ({})",
                 address.port, reason));
    }
    throw PeerError(format("rank 0 did not answer at {} within {} s: {}", address.text(), seconds, reason));
  }
}

std::unique_ptr<C10dStore> memory_store() {
  return std::make_unique<Store>(c10::make_intrusive<c10d::HashStore>(),
                                 std::make_shared<StoreState>(kMostAnswerSeconds));
}

}  // namespace stepforge
