// SPDX-License-Identifier: Apache-2.0
// The program: parses arguments, calls one function per command, turns errors into messages and exit codes.
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>
#include <string>

#include "stepforge/app/command_line.h"
#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

namespace {

/// Writes the message where torchrun looks for that of its first failed process: the file that
/// TORCHELASTIC_ERROR_FILE names, as JSON. Does nothing without the variable.
void write_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  // torchrun takes the process with the smallest time for the one that failed first, and shows its call
  // stack, which for a Python program holds the message.
  const Json content = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  try {
    write_file_atomic(path, content.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const std::exception& failure) {
    std::cerr << "error: " << failure.what() << '\n';
  }
}

int report(const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  const auto* ours = dynamic_cast<const Error*>(&error);
  // The rank that failed tells its agent; one that stops because of it does not.
  if (dynamic_cast<const PeerError*>(&error) == nullptr) write_error_file(error.what());
  return static_cast<int>(ours != nullptr ? ours->exit_code() : ExitCode::failure);
}

}  // namespace

}  // namespace stepforge

int main(int argc, char** argv) {
  // A file that reaches the limit of its size is an error to report, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return stepforge::run_command_line(argc, argv);
  } catch (const std::exception& error) {
    return stepforge::report(error);
  }
}
