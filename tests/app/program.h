// SPDX-License-Identifier: Apache-2.0
// Runs the built program as a child process.
#pragma once

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "tests/support/long_tests.h"
#include "tests/support/paths.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {

namespace fs = std::filesystem;
inline fs::path program_path() {
  return binary_dir() / "stepforge";
}

struct ProgramResult {
  int exit_code = 0;  ///< 128 + signal number if a signal killed it
  std::string out;
  std::string err;
};

/// A child process whose output goes to files of a temporary folder.
class Child {
 public:
  /// `environment`: "NAME=value", added to the variables of this process. Its cache folder is a new one.
  /// `terminal`: receives standard error, instead of a file.
  explicit Child(const Strings& args, const std::string& input = "", const Strings& environment = {},
                 const fs::path& program = program_path(), const fs::path& terminal = {}) {
    std::ofstream(folder_ / "in", std::ios::binary) << input;
    Strings arguments = Strings{program.string()} + args;
    Strings variables = environment + Strings{"XDG_CACHE_HOME=" + (folder_ / "cache").string()};
    for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, (folder_ / "in").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, (folder_ / "out").c_str(), O_WRONLY | O_CREAT,
                                     0644);
    const fs::path err = terminal.empty() ? folder_ / "err" : terminal;
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0644);
    const int failure = posix_spawnp(&pid_, program.c_str(), &files, nullptr, pointers(arguments).data(),
                                     pointers(variables).data());
    posix_spawn_file_actions_destroy(&files);
    EXPECT_EQ(failure, 0) << "cannot start " << program;
  }
  ~Child() {
    if (running_) {
      kill(pid_, SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  /// Its output to standard error so far; "" if that is a terminal.
  std::string err() const { return fs::exists(folder_ / "err") ? read_file(folder_ / "err") : ""; }

  /// Its output to standard output so far.
  std::string out() const { return fs::exists(folder_ / "out") ? read_file(folder_ / "out") : ""; }

  /// Waits until the process has ended.
  ProgramResult wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    running_ = false;
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return {code, read_file(folder_ / "out"), err()};
  }

  /// Waits until `condition` is true or the child has ended; returns whether it is true.
  bool wait_until(const std::function<bool()>& condition) const {
    while (!condition()) {
      siginfo_t info{};
      if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == pid_) {
        return condition();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

 private:
  static std::vector<char*> pointers(Strings& args) {
    std::vector<char*> result;
    for (std::string& word : args) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }

  TempFolder folder_;
  pid_t pid_ = -1;
  bool running_ = true;
};

/// The program with `args` as a line for a shell.
inline std::string shell_command(const Strings& args) {
  std::string command = program_path().string();
  for (const std::string& arg : args) command += " '" + arg + "'";
  return command;
}

inline ProgramResult run_program(const Strings& args, const std::string& input = "",
                                 const Strings& environment = {}) {
  return Child(args, input, environment).wait();
}

/// The output of a run that must succeed.
inline std::string output_of(const Strings& args, const std::string& input = "") {
  const ProgramResult result = run_program(args, input);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

/// The number after `name` in a line such as "loss 5.1234  perplexity 12.3".
inline double number_after(const std::string& text, const std::string& name) {
  const size_t place = text.rfind(name + " ");
  if (place == std::string::npos) {
    ADD_FAILURE() << name << " is not in " << text;
    return NAN;
  }
  return std::stod(text.substr(place + name.size() + 1));
}

/// The message of a run that must be refused with exit code 2, before anything is printed.
inline std::string refusal_of(const Strings& args, const std::string& input = "") {
  const ProgramResult result = run_program(args, input);
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  return result.err;
}

/// `lines` lines of different lengths.
inline std::string some_text(int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) {
    text += format("Line {} of the tale tells of {} ships and {} gulls{}\n", line, line % 17 * line % 17,
                   line % 5, std::string(static_cast<size_t>(line * 7 % 23), '.'));
  }
  return text;
}

/// torchrun from the Python environment of tools/oracle; "" if it is not installed.
inline fs::path torchrun() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path base = cache != nullptr ? fs::path(cache) : fs::path(home != nullptr ? home : "") / ".cache";
  const fs::path program = base / "stepforge" / "oracle-venv" / "bin" / "torchrun";
  return fs::exists(program) ? program : fs::path();
}

}  // namespace stepforge::testing
