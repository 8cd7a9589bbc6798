// Why groups and worlds ended, told to all ranks through a store within milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "stepforge/comm/key_store.h"

namespace stepforge {

/// A list of failures that every rank reads on a thread of its own, in the same order.
class FailureLog {
 public:
  /// What failed ("" for the whole world) and why. Called by the log's thread, also once with `lost` if the
  /// store cannot be reached any more.
  using Handler = std::function<void(const std::string& scope, const std::string& reason)>;

  FailureLog(KeyStore& store, std::string prefix, int rank, int size, std::string lost, Handler handler);
  ~FailureLog();
  FailureLog(const FailureLog&) = delete;
  FailureLog& operator=(const FailureLog&) = delete;

  /// Tells all ranks, this one among them. From any thread. False if the store cannot be reached.
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
  std::unique_ptr<KeyStore> connection_;  ///< of the thread
  std::mutex mutex_;                      ///< of what follows
  int64_t next_ = 0;                      ///< entry that is read next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stepforge
