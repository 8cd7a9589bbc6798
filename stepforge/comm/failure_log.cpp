// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/failure_log.h"

#include <optional>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// How long the thread waits at a time: it delays the destructor by at most this if the store's host is down.
constexpr double kWaitSeconds = 10;

}  // namespace

FailureLog::FailureLog(KeyStore& store, std::string prefix, int rank, int size, std::string lost,
                       Handler handler)
    : store_(store),
      prefix_(std::move(prefix)),
      rank_(rank),
      size_(size),
      lost_(std::move(lost)),
      handler_(std::move(handler)),
      connection_(store.another_connection()),
      thread_([this] { read(); }) {}

FailureLog::~FailureLog() {
  int64_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    next = next_;
  }
  // If the store is not reachable, the thread cannot reach it either, and ends.
  try_store([&] { store_.set(wake_key(next, rank_), ""); });
  thread_.join();
}

std::string FailureLog::wake_key(int64_t entry, int rank) const {
  return format("{}/wake/{}/{}", prefix_, entry, rank);
}

std::string FailureLog::entry_key(int64_t entry) const {
  return format("{}/failure/{}", prefix_, entry);
}

bool FailureLog::post(const std::string& scope, const std::string& reason) {
  try {
    const int64_t entry = store_.add(prefix_ + "/failures", 1) - 1;
    store_.set(entry_key(entry), format("{}\n{}", scope, reason));
    // Each rank waits for a key of its own, so that the destructor can wake its thread too.
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(wake_key(entry, rank));
    store_.set_all(keys, "");
    return true;
  } catch (const Error&) {
    return false;
  }
}

void FailureLog::read() {
  try {
    for (int64_t entry = 0;;) {
      const bool is_awake = connection_->wait(wake_key(entry, rank_), kWaitSeconds).has_value();
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        if (!is_awake) continue;
        next_ = entry + 1;
      }
      const std::string text = connection_->wait(entry_key(entry), kWaitSeconds).value_or("\nunknown");
      const std::size_t line_end = text.find('\n');
      handler_(text.substr(0, line_end), text.substr(line_end + 1));
      ++entry;
    }
  } catch (const Error&) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    handler_("", lost_);
  }
}

}  // namespace stepforge
