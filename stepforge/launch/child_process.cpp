// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

// How much of the output is kept for reports.
constexpr std::size_t kMaxLines = 12;
constexpr std::size_t kMaxLineBytes = 2000;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Runs in the child between fork() and execve(): only async-signal-safe calls.
[[noreturn]] void become_program(char* const* command, char* const* environment, const sigset_t& signals,
                                 pid_t parent, int output, int errors, int descriptor) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // the parent has died already
  const int input = open("/dev/null", O_RDONLY);
  if (input >= 0) dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  if (descriptor >= 0) fcntl(descriptor, F_SETFD, 0);
  signal(SIGPIPE, SIG_DFL);  // the launcher ignores it
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  execve(command[0], command, environment);
  const std::string_view reason = strerrordesc_np(errno);
  for (const std::string_view text :
       {std::string_view(command[0]), std::string_view(" cannot be run: "), reason, std::string_view("\n")}) {
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) break;
  }
  _exit(127);
}

bool is_stack_frame(std::string_view line) {
  return line.starts_with("frame #") || line.starts_with("Exception raised from ");
}

}  // namespace

std::string EscapeRemover::add(std::string_view bytes) {
  constexpr std::size_t kMaxHeld = 4096;
  std::string text;
  const auto release = [&](std::string_view output) {
    text += output;
    held_.clear();
  };
  for (const char byte : bytes) {
    if (held_.empty()) {
      (byte == '\r' || byte == '\x1b' ? held_ : text) += byte;
      continue;
    }
    if (held_.front() == '\r' && byte == '\n') {
      release(held_.substr(1) + '\n');
      continue;
    }
    if (held_.front() == '\r' && byte == '\r') held_.clear();
    held_ += byte;
    if (held_.front() == '\r') {
      if (held_.ends_with("\x1b[K")) held_.clear();  // the line was erased
    } else if (held_.size() == 2 ? byte != '[' : byte >= 0x40) {
      release(byte == 'm' || byte == 'K' ? "" : std::string(held_));
    }
    if (held_.size() > kMaxHeld) release(std::string(held_));
  }
  return text;
}

void LastLines::add(std::string_view text) {
  for (const char byte : text) {
    if (byte != '\n') {
      if (unfinished_.size() < kMaxLineBytes) unfinished_ += byte;
      continue;
    }
    if (!is_stack_frame(unfinished_)) lines_.push_back(unfinished_);
    unfinished_.clear();
    if (lines_.size() > kMaxLines) lines_.pop_front();
  }
}

std::string LastLines::text() const {
  std::vector<std::string> lines(lines_.begin(), lines_.end());
  if (!unfinished_.empty()) lines.push_back(unfinished_);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  if (lines.size() > kMaxLines) lines.erase(lines.begin());
  return join(lines, "\n");
}

ChildProcess::ChildProcess(const Start& start) : start_(start), log_(start.log) {
  std::array<int, 2> output{-1, -1};
  std::array<int, 2> errors{-1, -1};
  if (pipe2(output.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(format("cannot start rank {}: pipe: {}", start.rank, std::strerror(errno)));
  if (pipe2(errors.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    for (const int end : output) close(end);
    throw Error(format("cannot start rank {}: pipe: {}", start.rank, std::strerror(errno)));
  }
  // The read ends do not block; the write ends, which the rank gets, do.
  for (const int end : {output[1], errors[1]}) fcntl(end, F_SETFL, 0);
  const auto command = pointers(start.command);
  const auto environment = pointers(start.environment);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    become_program(command.data(), environment.data(), start.signals, parent, output[1], errors[1],
                   start.descriptor);
  }
  const int failure = errno;
  close(output[1]);
  close(errors[1]);
  pipes_ = {output[0], errors[0]};
  if (process_ < 0) {
    for (const int end : pipes_) close(end);
    throw Error(format("cannot start rank {}: {}", start.rank, std::strerror(failure)));
  }
}

ChildProcess::~ChildProcess() {
  for (const int pipe : pipes_) {
    if (pipe >= 0) close(pipe);
  }
  if (is_running()) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
}

void ChildProcess::signal(int number, int count) const {
  sigval value{};
  value.sival_int = count;
  if (is_running()) sigqueue(process_, number, value);
}

std::vector<ChildOutput> ChildProcess::read_output() {
  std::vector<ChildOutput> outputs;
  std::array<char, 65536> buffer{};  // the capacity of a pipe
  for (std::size_t i = 0; i < pipes_.size(); ++i) {
    if (pipes_[i] < 0) continue;
    const ssize_t count = read(pipes_[i], buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) {
      close(pipes_[i]);
      pipes_[i] = -1;
      continue;
    }
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    record(bytes);
    outputs.push_back({i == 0 ? STDOUT_FILENO : STDERR_FILENO, std::string(bytes)});
  }
  return outputs;
}

void ChildProcess::record(std::string_view bytes) {
  const std::string text = plain_.add(bytes);
  log_.write(text);
  last_lines_.add(text);
}

bool ChildProcess::reap() {
  if (!is_running()) return false;
  int status = 0;
  if (waitpid(process_, &status, WNOHANG) != process_) return false;
  was_killed_ = WIFSIGNALED(status);
  exit_code_ = was_killed_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

}  // namespace stepforge
