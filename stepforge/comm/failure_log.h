// SPDX-License-Identifier: Apache-2.0
// Reports failures of groups and worlds to all ranks through a store, within milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "stepforge/comm/key_store.h"

namespace stepforge {

/// A list of failures. Every rank reads them in the same order, on a thread of its own.
class FailureLog {
 public:
  /// Called by the log's thread: group `scope` ("" for the whole world) failed because of `reason`. Called
  /// once with `lost` as the reason when the store is no longer reachable.
  using Handler = std::function<void(const std::string& scope, const std::string& reason)>;

  FailureLog(KeyStore& store, std::string prefix, int rank, int size, std::string lost, Handler handler);
  ~FailureLog();
  FailureLog(const FailureLog&) = delete;
  FailureLog& operator=(const FailureLog&) = delete;

  /// Reports to all ranks, including this one. Any thread may call it. False if the store is not reachable.
  bool post(const std::string& scope, const std::string& reason);

 private:
  void read();
  std::string wake_key(int64_t entry, int rank) const;
  std::string entry_key(int64_t entry) const;

  KeyStore& store_;
  std::string prefix_;
  int rank_;
  int size_;
  std::string lost_;
  Handler handler_;
  std::unique_ptr<KeyStore> connection_;  ///< used by the thread
  std::mutex mutex_;                      ///< guards next_ and stopping_
  int64_t next_ = 0;                      ///< the entry to read next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stepforge
