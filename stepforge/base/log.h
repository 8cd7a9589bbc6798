// SPDX-License-Identifier: Apache-2.0
// The program's log: lines to the terminal and, once a run folder exists, to a file. A Logger is passed by
// reference; there is no global one.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "stepforge/base/format.h"

namespace stepforge {

enum class LogLevel { debug, info, warning, error };

/// Thread-safe. Lines look like "12:00:01 INFO  text"; warnings and errors are coloured on a terminal. Control characters
/// of the text are escaped (printable() of utf8.h).
class Logger {
 public:
  /// Writes to standard error. `colour` as decided by the caller (see stderr_is_terminal).
  explicit Logger(LogLevel threshold = LogLevel::info, bool colour = false);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// From now on every line also goes to `path`: appended, written line by line, without terminal colours.
  /// Throws Error if it cannot be opened, UsageError if it is a link.
  void add_file(const std::filesystem::path& path);

  /// From now on only errors reach the terminal; files still get every line.
  void quiet_terminal();

  /// Called before and after a line reaches the terminal, so that a status line can be cleared and redrawn.
  void set_terminal_guard(std::function<void()> before, std::function<void()> after);

  void write(LogLevel level, std::string_view text);

  template <typename... Args>
  void info(std::string_view pattern, const Args&... arguments) {
    write(LogLevel::info, format(pattern, arguments...));
  }
  template <typename... Args>
  void warning(std::string_view pattern, const Args&... arguments) {
    write(LogLevel::warning, format(pattern, arguments...));
  }
  template <typename... Args>
  void error(std::string_view pattern, const Args&... arguments) {
    write(LogLevel::error, format(pattern, arguments...));
  }
  template <typename... Args>
  void debug(std::string_view pattern, const Args&... arguments) {
    write(LogLevel::debug, format(pattern, arguments...));
  }
  void flush();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Width in columns of the terminal that a file descriptor refers to, 0 if it is not a terminal.
int terminal_columns(int descriptor);
/// The environment variable in which `stepforge launch` passes the width of its terminal to the ranks, whose
/// standard error it prints.
inline constexpr const char* kStderrColumnsVariable = "STEPFORGE_STDERR_COLUMNS";

bool stderr_is_terminal();
bool stdout_is_terminal();
bool stdin_is_terminal();

}  // namespace stepforge
