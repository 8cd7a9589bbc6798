// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/launch_io.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/interrupt.h"

namespace stepforge {

namespace {

void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      pollfd writable{descriptor, POLLOUT, 0};
      poll(&writable, 1, -1);
      continue;
    }
    if (count < 0) return;  // the reader is gone; the logs still get the output
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

Signals::Signals() {
  sigset_t watched = end_signals();
  sigaddset(&watched, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &watched, &before_);
  descriptor_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    throw Error(format("cannot receive signals: {}", std::strerror(errno)));
  }
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
}

Signals::~Signals() {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int Signals::next() const {
  signalfd_siginfo info{};
  return read(descriptor_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

void Terminal::show(int rank, const ChildOutput& output) {
  if (!shown_.contains(rank)) return;
  if (shown_.size() == 1) return write_all(output.target, output.bytes);
  std::string& line = lines_[{rank, output.target}];
  for (const char byte : output.bytes) {
    line += byte;
    if (byte == '\n') flush(rank, output.target, line);
  }
}

void Terminal::finish() {
  for (auto& [source, line] : lines_) {
    if (!line.empty()) flush(source.first, source.second, line += '\n');
  }
}

void Terminal::flush(int rank, int target, std::string& line) {
  write_all(target, format("[rank {}] {}", rank, line));
  line.clear();
}

}  // namespace stepforge
