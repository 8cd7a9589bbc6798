// SPDX-License-Identifier: Apache-2.0
// The signals by which people, terminals and schedulers end a process. One thread waits for them; there is no signal
// handler, so nothing runs in signal context.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include <signal.h>
#include <unistd.h>

namespace stepforge {

/// SIGINT, SIGTERM and the signals of is_notice_of_end(), except those of the latter that the process was started to
/// ignore, such as SIGHUP under `nohup`.
sigset_t end_signals();

/// Whether the signal only announces the end: SIGHUP (the terminal is gone), SIGQUIT, SIGUSR1 and SIGUSR2 (a
/// scheduler's warning), SIGXCPU (a limit of processor time), SIGPWR. They may repeat, and SIGTERM may follow before the step
/// has ended, so none of them counts as the first of two signals.
bool is_notice_of_end(int number);

/// The first of end_signals() sets requested(); the second SIGINT or SIGTERM clears the terminal's last line (a status line
/// and "^C") and ends the process at once with exit code 130. A signal from the parent process can carry a
/// number (sigqueue): `stepforge launch` numbers its signals, so that one Ctrl-C that reaches both launcher
/// and ranks counts once. Create the watcher before any other thread starts: threads inherit the blocked
/// signals.
class InterruptWatcher {
 public:
  /// `announce` is called by the watching thread at the first signal, with its number.
  explicit InterruptWatcher(std::function<void(int)> announce);
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

  bool requested() const { return requested_; }
  /// Acts like a first signal, but does not call `announce`.
  void request() { requested_ = true; }
  /// Call when the ranks of the job have met. Before that, a signal after the death of the parent process ends this one at
  /// once: there is nothing to save, and it would wait for ranks that died with the launcher.
  void ranks_have_met() { have_met_ = true; }

 private:
  void watch();

  const sigset_t signals_ = end_signals();
  const pid_t parent_ = getppid();
  std::function<void(int)> announce_;
  std::atomic<bool> requested_{false};
  std::atomic<bool> have_met_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace stepforge
