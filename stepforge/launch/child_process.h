// One rank's process as its launcher sees it: started, read from, waited for.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "stepforge/base/files.h"

namespace stepforge {

/// Bytes to pass on, and to which descriptor (standard output or error).
struct ChildOutput {
  int target = 1;
  std::string bytes;
};

/// A child process whose output and errors are read through pipes and written to a log file. Its input is
/// empty. It has a process group of its own, so that Ctrl-C reaches it only through its parent, and is told
/// to end if the parent dies.
class ChildProcess {
 public:
  struct Start {
    std::vector<std::string> command;
    std::vector<std::string> environment;  ///< "NAME=value", all of them
    std::filesystem::path log;
    sigset_t signals;     ///< blocked signals it shall have
    int descriptor = -1;  ///< one more that it shall have open, by the same number
  };

  /// Throws Error if the log cannot be written or no process can be made. A program that cannot be run ends
  /// with exit code 127 and a line in the log.
  explicit ChildProcess(const Start& start);
  /// Ends the process at once if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool is_running() const { return !exit_code_; }
  /// Once it has ended: 128 + the signal if one ended it.
  std::optional<int> exit_code() const { return exit_code_; }
  void signal(int number) const;

  /// The read ends of its pipes; -1 for one that is closed.
  const std::array<int, 2>& pipes() const { return pipes_; }
  /// Reads some of what is there without waiting, and writes it to the log; nothing if there is nothing.
  std::vector<ChildOutput> read_output();
  /// Notices its end without waiting; true if it has ended just now.
  bool reap();

  /// Its last lines.
  std::string tail() const;

 private:
  void keep(std::string_view bytes);

  FileWriter log_;
  std::array<int, 2> pipes_{-1, -1};
  pid_t process_ = -1;
  std::optional<int> exit_code_;
  std::string last_bytes_;
};

}  // namespace stepforge
