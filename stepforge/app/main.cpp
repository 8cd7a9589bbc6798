// SPDX-License-Identifier: Apache-2.0
// The program: runs the command line and turns errors into messages and exit codes.
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "stepforge/app/command_line.h"
#include "stepforge/base/error.h"
#include "stepforge/base/interrupt.h"
#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/utf8.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

namespace {

/// Writes the message as JSON into the file that TORCHELASTIC_ERROR_FILE names, from which torchrun reads the
/// error of a failed process. Does nothing without the variable.
void write_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  // torchrun treats the process with the smallest timestamp as the root cause and prints its py_callstack,
  // which holds the message of a Python program.
  const Json content = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  try {
    write_file_atomic(path, content.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const std::exception& failure) {
    std::cerr << "error: " << printable(failure.what()) << '\n';
  }
}

int report(const std::exception& error) {
  const std::string message = printable(error.what());
  std::cerr << "error: " << message << '\n';
  const auto* ours = dynamic_cast<const Error*>(&error);
  // Only the rank that failed reports to torchrun, not those that stop because of it.
  if (dynamic_cast<const PeerError*>(&error) == nullptr) write_error_file(message);
  return static_cast<int>(ours != nullptr ? ours->exit_code() : ExitCode::failure);
}

/// A scheduler's notice that comes while `train` reads its configuration waits for the InterruptWatcher.
void hold_notices_of_end() {
  sigset_t held = end_signals();
  for (const int number : {SIGINT, SIGTERM}) sigdelset(&held, number);
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

/// What a command printed may still be in the buffer.
void require_output_written() {
  std::cout.flush();
  if (!std::cout) throw Error("cannot write to standard output; is the disk full?");
}

}  // namespace

}  // namespace stepforge

int main(int argc, char** argv) {
  // A write beyond the file size limit fails with an error, as on a full disk, instead of killing the
  // process.
  std::signal(SIGXFSZ, SIG_IGN);
  if (argc > 1 && (std::string_view(argv[1]) == "train" || std::string_view(argv[1]) == "finetune"))
    stepforge::hold_notices_of_end();
  try {
    const int code = stepforge::run_command_line(argc, argv);
    stepforge::require_output_written();
    return code;
  } catch (const std::exception& error) {
    return stepforge::report(error);
  }
}
