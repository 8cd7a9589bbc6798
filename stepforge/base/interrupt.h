// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM, without a signal handler: one thread waits for them, so nothing runs in signal context.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace stepforge {

/// The first SIGINT or SIGTERM sets requested(); the second clears the terminal's last line (a status line
/// and "^C") and ends the process at once with exit code 130. A signal from the parent process can carry a
/// number (sigqueue): `stepforge launch` numbers its signals, so that one Ctrl-C that reaches both launcher
/// and ranks counts once. Create the watcher before any other thread starts: threads inherit the blocked
/// signals.
class InterruptWatcher {
 public:
  /// `announce` is called by the watching thread at the first signal.
  explicit InterruptWatcher(std::function<void()> announce);
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

  bool requested() const { return requested_; }
  /// Acts like a first signal, but does not call `announce`.
  void request() { requested_ = true; }

 private:
  void watch();

  std::function<void()> announce_;
  std::atomic<bool> requested_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace stepforge
