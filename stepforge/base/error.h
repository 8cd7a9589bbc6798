// SPDX-License-Identifier: Apache-2.0
// The error types of the whole program. An error's text names the offending value, where it came from, and
// the remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace stepforge {

/// Exit codes of the program; 0 is success.
enum class ExitCode : int { failure = 1, usage = 2, interrupted = 130 };

/// Something failed while running: a file, a tensor, a numeric check. Ends the program with exit code 1 if
/// not handled.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  virtual ExitCode exit_code() const { return ExitCode::failure; }
};

/// The user asked for something that cannot be done: a config value, a command-line argument, a missing file.
/// Thrown before anything that the user has is changed. Exit code 2; a launcher does not try again.
class UsageError : public Error {
 public:
  using Error::Error;
  ExitCode exit_code() const override { return ExitCode::usage; }
};

/// A file from outside is malformed. The text names the file, the byte offset or line, and the field.
class FormatError : public Error {
 public:
  using Error::Error;
};

}  // namespace stepforge
