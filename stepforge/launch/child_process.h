// SPDX-License-Identifier: Apache-2.0
// A child process of the launcher: one rank, with its pipes, log and exit code.
#pragma once

#include <array>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "stepforge/base/file_writer.h"

namespace stepforge {

/// Bytes that a rank wrote to standard output or standard error.
struct ChildOutput {
  int target = 1;  ///< STDOUT_FILENO or STDERR_FILENO
  std::string bytes;
};

/// Converts terminal output to plain text: removes colours, and lines that are overwritten after a carriage
/// return, such as a status line.
class EscapeRemover {
 public:
  /// Returns the part of the text that later bytes can no longer change.
  std::string add(std::string_view bytes);

 private:
  std::string held_;  ///< starts with a carriage return or an escape whose effect is not known yet
};

/// The last lines of a text, without the call stack that libtorch appends to its errors.
class LastLines {
 public:
  void add(std::string_view text);
  std::string text() const;

 private:
  std::deque<std::string> lines_;
  std::string unfinished_;
};

/// A child process whose standard output and error are read through pipes and written to a log file. Its
/// standard input is empty. It has its own process group, so that Ctrl-C reaches it only through its parent,
/// and it gets SIGTERM if the parent dies.
class ChildProcess {
 public:
  struct Start {
    int rank = 0;
    std::vector<std::string> command;
    std::vector<std::string> environment;  ///< "NAME=value", complete
    std::filesystem::path log;
    sigset_t signals;     ///< its signal mask
    int descriptor = -1;  ///< inherited under the same number; -1: none
  };

  /// Throws Error if the log or the process cannot be created. If the program cannot be executed, the log
  /// says why and the exit code is 127.
  explicit ChildProcess(const Start& start);
  /// Kills the process if it is still running.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int rank() const { return start_.rank; }
  const std::filesystem::path& log() const { return start_.log; }
  bool is_running() const { return !exit_code_; }
  /// nullopt while it runs; 128 + signal number if a signal killed it.
  std::optional<int> exit_code() const { return exit_code_; }
  bool was_killed() const { return was_killed_; }
  /// Sends a signal with `count`, the number of signals sent so far, as its sigqueue() value. With it a rank
  /// that also receives the signal directly (because a process group or batch job is signalled) counts it
  /// once.
  void signal(int number, int count) const;

  /// The read ends of its pipes; -1 if closed.
  const std::array<int, 2>& pipes() const { return pipes_; }
  /// Reads the available output without blocking and writes it to the log.
  std::vector<ChildOutput> read_output();
  /// Checks without blocking whether it has ended. Returns true only in the first call after its end.
  bool reap();

  /// The last lines of its output.
  std::string tail() const { return last_lines_.text(); }

 private:
  void record(std::string_view bytes);

  Start start_;
  FileWriter log_;
  std::array<int, 2> pipes_{-1, -1};
  pid_t process_ = -1;
  std::optional<int> exit_code_;
  bool was_killed_ = false;
  EscapeRemover plain_;
  LastLines last_lines_;
};

}  // namespace stepforge
