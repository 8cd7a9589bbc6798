// SPDX-License-Identifier: Apache-2.0
// The failure of a collective that runs on a device, long after the call has returned.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace stepforge {

/// The first failure of the enqueued calls of a rank. Thread-safe.
class CallFailure {
 public:
  /// `on_failure` is called with the reason when a call fails for the first time; it must wake those that wait for this rank.
  explicit CallFailure(std::function<void(const std::string&)> on_failure)
      : on_failure_(std::move(on_failure)) {}

  /// From now on on_failure is not called.
  void close();
  void set(std::exception_ptr failure, const std::string& reason);
  /// Throws it; nothing if there is none.
  void rethrow();

 private:
  std::mutex mutex_;
  std::function<void(const std::string&)> on_failure_;
  std::exception_ptr failure_;
};

}  // namespace stepforge
