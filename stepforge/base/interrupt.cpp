// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/interrupt.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <string_view>
#include <tuple>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "stepforge/base/error.h"

namespace stepforge {

namespace {
sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}
}  // namespace

InterruptWatcher::InterruptWatcher(std::function<void()> announce) : announce_(std::move(announce)) {
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { watch(); });
}

InterruptWatcher::~InterruptWatcher() {
  stop_ = true;
  thread_.join();
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void InterruptWatcher::watch() {
  const sigset_t signals = watched_signals();
  const timespec tick{0, 50'000'000};  // how often stop_ is checked
  int direct = 0;                      // signals from anywhere
  int from_parent = 0;                 // the parent's number of its last one
  while (!stop_) {
    siginfo_t info{};
    if (sigtimedwait(&signals, &info, &tick) < 0) continue;
    if (info.si_code == SI_QUEUE && info.si_pid == getppid()) {
      from_parent = std::max(from_parent, info.si_value.sival_int);
    } else {
      ++direct;
    }
    if (std::max(direct, from_parent) > 1) {
      constexpr std::string_view kClearLine = "\r\x1b[K";
      const bool is_terminal = isatty(STDERR_FILENO) == 1;
      if (is_terminal) std::ignore = write(STDERR_FILENO, kClearLine.data(), kClearLine.size());
      _exit(static_cast<int>(ExitCode::interrupted));
    }
    if (!requested_.exchange(true) && announce_) announce_();
  }
}

}  // namespace stepforge
