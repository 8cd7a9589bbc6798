// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/interrupt.h"

#include <algorithm>
#include <array>
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
constexpr std::array<int, 6> kNotices = {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGPWR};

bool is_ignored(int number) {
  struct sigaction action{};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}
/// Removes a status line and "^C".
void clear_terminal_line() {
  constexpr std::string_view kClearLine = "\r\x1b[K";
  if (isatty(STDERR_FILENO) == 1) std::ignore = write(STDERR_FILENO, kClearLine.data(), kClearLine.size());
}
}  // namespace

bool is_notice_of_end(int number) {
  return std::find(kNotices.begin(), kNotices.end(), number) != kNotices.end();
}

sigset_t end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  for (const int number : kNotices) {
    if (!is_ignored(number)) sigaddset(&signals, number);
  }
  return signals;
}

InterruptWatcher::InterruptWatcher(std::function<void(int)> announce) : announce_(std::move(announce)) {
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { watch(); });
}

InterruptWatcher::~InterruptWatcher() {
  stop_ = true;
  thread_.join();
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
}

void InterruptWatcher::watch() {
  const timespec tick{0, 50'000'000};  // how often stop_ is checked
  int direct = 0;                      // signals from anywhere
  int from_parent = 0;                 // number of the parent's last signal
  while (!stop_) {
    siginfo_t info{};
    if (sigtimedwait(&signals_, &info, &tick) < 0) continue;
    if (is_notice_of_end(info.si_signo)) {
      // Only the request below.
    } else if (info.si_code == SI_QUEUE && info.si_pid == getppid()) {
      from_parent = std::max(from_parent, info.si_value.sival_int);
    } else {
      ++direct;
    }
    clear_terminal_line();
    const bool is_orphan = !have_met_ && getppid() != parent_;
    if (std::max(direct, from_parent) > 1 || is_orphan) {
      _exit(static_cast<int>(ExitCode::interrupted));
    }
    if (!requested_.exchange(true) && announce_) announce_(info.si_signo);
  }
}

}  // namespace stepforge
