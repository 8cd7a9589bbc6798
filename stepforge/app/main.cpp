// SPDX-License-Identifier: Apache-2.0
// The program: parses words, calls one function per sub-command, turns errors into messages and exit codes.
#include <csignal>
#include <exception>
#include <iostream>
#include <string>

#include "stepforge/app/command_line.h"
#include "stepforge/app/error_file.h"
#include "stepforge/base/error.h"
#include "stepforge/comm/communicator.h"

int main(int argc, char** argv) {
  // A file that may not grow is an error to report, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return stepforge::run_command_line(argc, argv);
  } catch (const stepforge::PeerError& error) {
    // The rank that failed tells its agent; this one only stops because of it.
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(error.exit_code());
  } catch (const stepforge::Error& error) {
    stepforge::write_error_file(error.what());
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    stepforge::write_error_file(error.what());
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(stepforge::ExitCode::failure);
  }
}
