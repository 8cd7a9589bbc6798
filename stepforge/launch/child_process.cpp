#include "stepforge/launch/child_process.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// How much of the output is kept for reports.
constexpr std::size_t tail_bytes = 8192;
constexpr std::size_t tail_lines = 12;

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

/// What the new process does before it becomes the program: only calls that are safe after fork().
[[noreturn]] void become_program(char* const* command, char* const* environment, const sigset_t& signals,
                                 pid_t parent, int output, int errors, int descriptor) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // the parent died before
  const int input = open("/dev/null", O_RDONLY);
  if (input >= 0) dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  if (descriptor >= 0) fcntl(descriptor, F_SETFD, 0);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  execve(command[0], command, environment);
  constexpr std::string_view message = "this program cannot be run: ";
  const char* reason = strerrordesc_np(errno);
  for (const std::string_view text : {message, std::string_view(reason), std::string_view("\n")}) {
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) break;
  }
  _exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const Start& start) : log_(start.log) {
  std::array<int, 2> output{-1, -1};
  std::array<int, 2> errors{-1, -1};
  if (pipe2(output.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw Error("no pipe to a rank can be made");
  if (pipe2(errors.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    for (const int end : output) close(end);
    throw Error("no pipe to a rank can be made");
  }
  // Only this process reads without waiting; the rank writes as to any pipe.
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
    throw Error(format("no process can be started: {}", std::strerror(failure)));
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

void ChildProcess::signal(int number) const {
  if (is_running()) kill(process_, number);
}

std::vector<ChildOutput> ChildProcess::read_output() {
  std::vector<ChildOutput> outputs;
  std::array<char, 65536> buffer{};  // as much as a pipe holds
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
    keep(bytes);
    outputs.push_back({i == 0 ? STDOUT_FILENO : STDERR_FILENO, std::string(bytes)});
  }
  return outputs;
}

void ChildProcess::keep(std::string_view bytes) {
  log_.write(bytes);
  last_bytes_ += bytes;
  if (last_bytes_.size() > 2 * tail_bytes) last_bytes_.erase(0, last_bytes_.size() - tail_bytes);
}

bool ChildProcess::reap() {
  if (!is_running()) return false;
  int status = 0;
  if (waitpid(process_, &status, WNOHANG) != process_) return false;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

std::string ChildProcess::tail() const {
  std::string_view text = last_bytes_;
  while (text.ends_with('\n')) text.remove_suffix(1);
  std::size_t begin = text.size();
  for (std::size_t lines = 0; lines < tail_lines && begin != std::string_view::npos && begin != 0; ++lines) {
    begin = text.rfind('\n', begin - 1);
  }
  const std::string_view last = begin == std::string_view::npos || begin == 0 ? text : text.substr(begin + 1);
  return std::string(last);
}

}  // namespace stepforge
