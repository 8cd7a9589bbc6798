// SPDX-License-Identifier: Apache-2.0
// One rank's process as its launcher sees it.
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

#include "stepforge/base/files.h"

namespace stepforge {

/// What a rank wrote to its standard output or error.
struct ChildOutput {
  int target = 1;  ///< STDOUT_FILENO or STDERR_FILENO
  std::string bytes;
};

/// Converts terminal output to plain text: removes colours, and text that a carriage return overwrites, such as
/// a status line.
class PlainText {
 public:
  /// The text that later bytes cannot change any more.
  std::string add(std::string_view bytes);

 private:
  std::string held_;  ///< from a carriage return or an escape on
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

/// A child process whose standard output and error are read through pipes and written to a log file. Its input
/// is empty. It has its own process group, so that Ctrl-C reaches it only through its parent, and gets SIGTERM
/// if the parent dies.
class ChildProcess {
 public:
  struct Start {
    int rank = 0;
    std::vector<std::string> command;
    std::vector<std::string> environment;  ///< "NAME=value", all of them
    std::filesystem::path log;
    sigset_t signals;     ///< the signals that it blocks
    int descriptor = -1;  ///< one that it inherits, with the same number
  };

  /// Throws Error if the log cannot be written or the process cannot be created. A program that cannot be run
  /// ends with exit code 127 and a line in the log.
  explicit ChildProcess(const Start& start);
  /// Ends the process at once if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int rank() const { return start_.rank; }
  const std::filesystem::path& log() const { return start_.log; }
  bool is_running() const { return !exit_code_; }
  /// Once it has ended: 128 + the signal if one ended it.
  std::optional<int> exit_code() const { return exit_code_; }
  bool was_killed() const { return was_killed_; }
  /// Sends a signal with `count`, the number of signals sent so far: a rank of this program that also got one
  /// from elsewhere (a whole process group or batch job is signalled) then knows that they are the same.
  void signal(int number, int count) const;

  /// The read ends of its pipes; -1 for one that is closed.
  const std::array<int, 2>& pipes() const { return pipes_; }
  /// Reads the available output, without waiting, and writes it to the log.
  std::vector<ChildOutput> read_output();
  /// Checks for its end without waiting; true if it is noticed now.
  bool reap();

  /// The last lines of its output.
  std::string tail() const { return last_lines_.text(); }

 private:
  void keep(std::string_view bytes);

  Start start_;
  FileWriter log_;
  std::array<int, 2> pipes_{-1, -1};
  pid_t process_ = -1;
  std::optional<int> exit_code_;
  bool was_killed_ = false;
  PlainText plain_;
  LastLines last_lines_;
};

}  // namespace stepforge
